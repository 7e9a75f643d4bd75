# The agent alone: one static binary, its trusted roots built in. Nothing is pulled to build it.
#
#	make image
#
# To run commands in an image of your own, copy the binary into it instead (README, "Container entrypoint").
FROM scratch
COPY bin/agent /agent
# Nobody in particular; an image made from this one sets its own.
USER 65532:65532
ENTRYPOINT ["/agent"]
CMD ["--listen", "ws://127.0.0.1:7000"]
