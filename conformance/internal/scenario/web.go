package scenario

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// Answer answers one request at a connection to the small server of the scenarios, or sends back what comes.
func Answer(c net.Conn) {
	in := bufio.NewReader(c)
	first, err := in.Peek(1)
	if err != nil {
		return
	}
	if first[0] < 'A' || first[0] > 'Z' {
		_, _ = io.Copy(c, in)
		return
	}
	request, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	body, _ := io.ReadAll(io.LimitReader(request.Body, maxData))
	status, more, content := "404 Not Found", "", "nothing here\n"
	switch request.Method + " " + request.URL.Path {
	case "GET /hello":
		status, more, content = "200 OK", "content-type: text/plain\r\nx-test: 1\r\n", "hello\n"
	case "POST /echo":
		status, content = "200 OK", string(body)
	case "GET /redirect":
		status, more, content = "302 Found", "location: /hello\r\n", ""
	case "GET /large":
		status, content = "200 OK", strings.Repeat("x", 3_000_000)
	}
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n%s\r\n%s", status, len(content), more, content)
}
