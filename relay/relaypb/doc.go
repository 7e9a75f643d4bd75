// Package relaypb is the relay's frames as protoc-gen-go makes them from
// relay.proto. The product does not link it: package frame reads and writes
// frames by hand. It is the second implementation that tests hold frame against,
// and a description of the format that other languages can compile.
package relaypb

//go:generate protoc --go_out=. --go_opt=paths=source_relative relay.proto
