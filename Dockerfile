# The service of chanas for one machine's processors, from a wheel that is built here: docs/service.md#in-a-container
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt uv
COPY pyproject.toml README.md LICENSE ./
COPY chanas chanas
RUN uv build --wheel --out-dir /wheel

FROM python:3.11-slim-bookworm
# Tuned functions are linked into libraries.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/*
# torch for processors alone: the one on PyPI brings several GB for GPUs.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheel /tmp/wheel
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c /tmp/constraints.txt \
        "chanas[service,rpc] @ file://$(echo /tmp/wheel/chanas-*.whl)" \
    && rm -r /tmp/wheel /tmp/constraints.txt \
    && useradd --uid 10001 --create-home chanas \
    && install -d -o chanas -g chanas -m 700 /data
USER 10001
WORKDIR /home/chanas
VOLUME /data
EXPOSE 8765
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8765/v1/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["chanas"]
CMD ["serve", "--host", "0.0.0.0", "--data", "/data"]
