# For whoever builds images with Docker: the same program as `make image` makes, which takes no
# daemon. `docker buildx build --platform linux/amd64,linux/arm64 .` builds both on this machine.
FROM --platform=$BUILDPLATFORM rust:1.95-bookworm AS build
ARG TARGETARCH
RUN apt-get update && apt-get install -y --no-install-recommends cmake gcc-aarch64-linux-gnu libc6-dev-arm64-cross
WORKDIR /src
COPY . .
ENV CARGO_TARGET_DIR=/target
RUN program=$(hack/release-binary "$TARGETARCH") && install -D "$program" /out/redrive

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/redrive /redrive
USER 65532:65532
ENTRYPOINT ["/redrive"]
