/* Runs the network in several threads, each with a handle of its own, and compares with the function without one.

   c++ -std=c++11 -O2 -pthread -o threads threads.cpp lib@NAME@.a -lm */
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "@NAME@.h"

namespace {

constexpr std::size_t num_threads = 4, batch = 3;
constexpr double seconds = 0.2; // of each thread

struct Tensors {
@CPP_MEMBERS@
};

struct Destroy {
    void operator()(@NAME@_handle *handle) const { @NAME@_destroy(handle); }
};

template <class T> void fill(std::vector<T> &numbers, std::uint32_t state) {
    for (T &number : numbers) {
        state = state * 1664525u + 1013904223u;
        number = static_cast<T>(state >> 31);
    }
}

template <class T> bool alike(const std::vector<T> &a, const std::vector<T> &b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

void run_in_thread(const Tensors &expected, int *code) {
    std::unique_ptr<@NAME@_handle, Destroy> handle(@NAME@_create());
    Tensors t = expected;
    *code = @MACRO@_OK;
    auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    do {
@CPP_CLEARS@
        *code = @NAME@_run_with(handle.get(), batch, @CPP_DATA@);
        if (*code == @MACRO@_OK && !(@CPP_ALIKE@)) *code = -1;
    } while (*code == @MACRO@_OK && std::chrono::steady_clock::now() < end);
}

} // namespace

int main() {
    std::vector<Tensors> expected(num_threads);
    std::uint32_t seed = 1;
    for (Tensors &t : expected) {
@CPP_FILLS@
        for (std::size_t i = 0; i < batch; ++i)
            if (int code = @NAME@_run(@CPP_NEXT@)) return code;
    }
    std::vector<std::thread> threads;
    int codes[num_threads];
    for (std::size_t i = 0; i < num_threads; ++i)
        threads.emplace_back(run_in_thread, std::cref(expected[i]), &codes[i]);
    for (std::thread &thread : threads) thread.join();
    for (int code : codes)
        if (code != @MACRO@_OK) return std::fprintf(stderr, "a thread ended with code %d\n", code), 1;
    std::printf("%zu threads: all alike\n", num_threads);
    return std::fflush(stdout) ? 1 : 0;
}
