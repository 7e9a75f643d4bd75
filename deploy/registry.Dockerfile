# The registry alone: one static binary, nothing is pulled to build it. make image builds it.
#
# Its state is in /data, unless it is in a NATS cluster, so /data has to be a volume. A new volume gets the owner of the
# folder in the image. A folder of the host does not: it has to belong to the user below.
FROM scratch AS parts
WORKDIR /data
COPY bin/registry /registry

FROM scratch
COPY --from=parts /registry /registry
COPY --from=parts --chown=65532:65532 /data /data
ENV REGISTRY_DATA=/data
USER 65532:65532
ENTRYPOINT ["/registry"]
CMD ["serve"]
