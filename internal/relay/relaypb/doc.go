// Package relaypb is the relay's frames as protoc-gen-go makes them from
// relay.proto. The product does not link it: package frame reads and writes
// frames by hand. It is the second implementation that tests hold frame against,
// and a description of the format that other languages can compile.
package relaypb

// The plugin is of the version that go.mod names.
//go:generate go build -o ../../../bin/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go
//go:generate protoc --plugin=../../../bin/protoc-gen-go --go_out=. --go_opt=paths=source_relative relay.proto
