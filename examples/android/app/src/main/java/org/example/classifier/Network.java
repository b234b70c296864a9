package org.example.classifier;

/** A network that `chanas export` compiled. One thread at a time; several threads take one each. */
public final class Network implements AutoCloseable {
    static {
        System.loadLibrary("network_jni");
    }

    private long handle = create();

    public Network() {
        if (handle == 0) throw new OutOfMemoryError("no memory for the network's activations");
    }

    /** The name of the most likely class of an image: ARGB pixels of `size()` rows of as many, as `Bitmap.getPixels` gives them. */
    public String classify(int[] argb) {
        float[] logits = logits(argb);
        int best = 0;
        for (int i = 1; i < logits.length; ++i) if (logits[i] > logits[best]) best = i;
        return className(best);
    }

    /** The logits of an image, in the order of the classes. */
    public float[] logits(int[] argb) {
        if (handle == 0) throw new IllegalStateException("the network is closed");
        float[] logits = run(handle, argb);
        if (logits == null) throw new IllegalArgumentException("expected " + size() + " x " + size() + " pixels");
        return logits;
    }

    @Override
    public void close() {
        destroy(handle);
        handle = 0;
    }

    /** Rows and columns of an image. */
    public static native int size();

    public static native String className(int index);

    private static native long create();

    private static native void destroy(long handle);

    private static native float[] run(long handle, int[] argb);
}
