// web serves a page, a WebSocket that echoes, and git over https, at port 443 of an address. It writes its certificate,
// which fits allowed.example.com and denied.example.com, to ca.pem.
package main

import (
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"

	"github.com/gorilla/websocket"
)

func main() {
	address, backend, repositories := os.Args[1], os.Args[2], os.Args[3]
	mux := http.NewServeMux()
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a page") })
	mux.HandleFunc("/echo", echo)
	mux.Handle("/one.git/", &cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=" + repositories, "GIT_HTTP_EXPORT_ALL=1"}})
	listener, err := net.Listen("tcp", address+":443")
	if err != nil {
		log.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux}, EnableHTTP2: true}
	server.StartTLS()
	if err := os.WriteFile("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o644); err != nil {
		log.Fatal(err)
	}
	select {}
}

func echo(w http.ResponseWriter, r *http.Request) {
	conn, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil || conn.WriteMessage(kind, message) != nil {
			return
		}
	}
}
