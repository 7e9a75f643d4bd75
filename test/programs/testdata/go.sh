# needs: go
export GOTOOLCHAIN=local GOFLAGS='-mod=mod -buildvcs=false' GOPROXY=off CGO_ENABLED=0
mkdir -p hello/inner
cd hello
cat >go.mod <<'M'
module example.org/hello

go 1.19
M
cat >inner/inner.go <<'M'
package inner

func Name() string { return "a static result" }
M
cat >main.go <<'M'
package main

import (
	"os"

	"example.org/hello/inner"
)

func main() {
	if err := os.WriteFile("made", []byte(inner.Name()+"\n"), 0o640); err != nil {
		println(err.Error())
		os.Exit(1)
	}
	os.Stdout.WriteString(inner.Name() + "\n")
}
M
go build -o ../result .
cd ..
./result
cd hello
go vet ./...
gofmt -l .
go run . && rm made
go list ./...
echo 'package inner; bad' >inner/bad.go
go build . 2>&1 || echo "status $?"
