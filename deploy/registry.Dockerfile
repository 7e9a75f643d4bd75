# The registry alone, as the agent's Dockerfile has it: make image.
FROM scratch
COPY bin/registry /registry
ENTRYPOINT ["/registry"]
CMD ["serve"]
