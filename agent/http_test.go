package agent

import (
	"fmt"
	"io"
	"net/http"
	"strings"
)

// webHandler returns the handler of the web server that tests send http/request to.
func webHandler() http.Handler {
	mux := http.NewServeMux()
	plain := func(w http.ResponseWriter) {
		w.Header()["Date"] = nil
		w.Header().Set("Content-Type", "text/plain")
	}
	mux.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) {
		plain(w)
		io.WriteString(w, "hello\n")
	})
	// /echo says what was asked.
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s a=%s %s", r.Method, strings.Join(r.Header.Values("X-A"), "|"), body)
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		w.Header().Set("Location", "/echo")
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		w.Header().Set("Location", "/loop")
		w.WriteHeader(http.StatusFound)
	})
	// /broken promises more than it sends.
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		plain(w)
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "part")
	})
	// /slow sends its header and then nothing until the client is gone.
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	// /endless never stops sending.
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		block := make([]byte, 64<<10)
		for r.Context().Err() == nil {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	return mux
}
