# The registry alone, as the agent's Dockerfile has it: make image.
#
# Its state is in /data, unless it is in a NATS cluster: give it a volume, which begins with the owner of the folder in the image. A folder of
# the host has to belong to the user below.
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
