# The image of the registry: one static binary and nothing else. make image builds it
# and pulls nothing for that.
#
# Without a NATS cluster the registry keeps its state in /data, so /data has to be a
# volume. A new volume gets the owner that /data has in this image. A folder of the host
# keeps its own owner, which has to be the user below.
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
