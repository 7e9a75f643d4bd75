# The image of the agent: one static binary, with trusted roots built in, and nothing
# else. To build it nothing is pulled:
#
#	make image
#
# To run commands in an image of your own, copy the binary into it instead (README,
# "Container entrypoint").
FROM scratch
COPY bin/agent /agent
# A user without a name and without rights. An image made from this one sets a user of its own.
USER 65532:65532
ENTRYPOINT ["/agent"]
CMD ["--listen", "ws://127.0.0.1:7000"]
