package httpclient

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/execagent/execagent/test/rig"
)

// encoded returns texts as gzip or zstd encodes them, in the pieces that it has flushed.
func encoded(encoding string, texts ...string) (pieces []string) {
	var b bytes.Buffer
	var z interface {
		io.WriteCloser
		Flush() error
	}
	if encoding == "gzip" {
		g := gzip.NewWriter(&b)
		g.Name, g.Comment, g.Extra, z = "name", "comment", []byte("extra"), g
	} else {
		z = rig.Value(zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1)))
	}
	for i, text := range texts {
		_, _ = io.WriteString(z, text)
		if i < len(texts)-1 {
			_ = z.Flush()
		} else {
			_ = z.Close()
		}
		pieces = append(pieces, b.String())
		b.Reset()
	}
	return pieces
}

// TestDecoding: gzip and zstd are undone, whatever the request accepts, and the two headers go; all
// else is passed on. A stream has what could be decoded before what is broken.
func TestDecoding(t *testing.T) {
	t.Parallel()
	const text = "hello world"
	zipped, zst, skipped := encoded("gzip", text)[0], encoded("zstd", text)[0], "\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
	event := string(rig.Value(zstd.NewWriter(nil)).EncodeAll([]byte(text), nil)) // with a small window
	long := strings.Repeat("0123456789abcdef", 1<<18)
	for name, tt := range map[string]struct{ method, encodings, body, want, err string }{
		"gzip":                 {"GET", "gzip", zipped + zipped, text, ""},
		"zstd":                 {"POST", "zstd", zst, text, ""},
		"an empty body":        {"GET", "zstd", "", "", ""},
		"HEAD":                 {"HEAD", "gzip", zipped, "", ""},
		"frames":               {"GET", "zstd", skipped + event + encoded("zstd", long)[0], text + long, ""},
		"upper case":           {"GET", "GZIP", zipped, zipped, ""},
		"a list":               {"GET", "gzip, gzip", zipped, zipped, ""},
		"two headers":          {"GET", "gzip|gzip", zipped, zipped, ""},
		"gzip, cut":            {"GET", "gzip", zipped[:len(zipped)-1], text, "its gzip data has no end"},
		"gzip, other content":  {"GET", "gzip", zipped[:len(zipped)-8] + "abcd" + zipped[len(zipped)-4:], text, "decoding gzip: the checksum is wrong"},
		"zstd, cut":            {"GET", "zstd", event[:len(event)-1], text, "its zstd data has no end"},
		"zstd, garbage behind": {"GET", "zstd", event + "garbage", text, "decoding zstd: "},
		"zstd, a large window": {"GET", "zstd", "\x28\xb5\x2f\xfd\x00\x70\x09\x00\x00x", "", "decoding zstd: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Encoding"] = strings.Split(tt.encodings, "|")
				w.Header()["Content-Length"] = []string{fmt.Sprint(len(tt.body))}
				_, _ = io.WriteString(w, tt.body)
			})
			taken, given := int64(0), 0
			resp, err := newClient(t, Config{}).Do(t.Context(), &Request{Method: tt.method, URL: s.URL, Room: func(_ context.Context, n int64) (func(), error) {
				taken += n
				return func() { given++ }, nil
			}})
			rig.Must(t, err)
			body, err := io.ReadAll(resp.Body)
			rig.Is(t, string(body) == tt.want, true, "%d bytes, want %d: %.80q", len(body), len(tt.want), body)
			rig.Is(t, err == nil, tt.err == "", "%v", err)
			rig.Is(t, strings.Contains(fmt.Sprint(err), tt.err), true, "%v", err)
			resp.Body.Close()
			kept := strings.Contains(fmt.Sprint(resp.Headers), "{content-")
			rig.Is(t, kept, tt.want == tt.body && tt.body != "", "headers about the encoding in %v", resp.Headers)
			decodes := tt.encodings == "zstd" && tt.body != ""
			rig.Is(t, taken > leastWindow && taken <= MaxRoom && given == 1, decodes, "%d bytes were taken, and %d times given back", taken, given)
		})
	}
}

// TestDecodingIsBounded: decoded bytes count for who bounds a body, and a window has to be granted.
func TestDecodingIsBounded(t *testing.T) {
	t.Parallel()
	short := errors.New("no memory")
	little := func(n int) ([]byte, error) {
		if n > 1<<20 {
			return nil, short
		}
		return make([]byte, 0, n), nil
	}
	for encoding, room := range map[string]Room{"gzip": nil, "zstd": nil, "zstd|": func(context.Context, int64) (func(), error) { return nil, short }} {
		encoding = strings.Trim(encoding, "|")
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", encoding)
			_, _ = io.WriteString(w, encoded(encoding, strings.Repeat("\x00", 4<<20))[0])
		})
		resp, err := newClient(t, Config{}).Do(t.Context(), &Request{Method: "GET", URL: s.URL, Room: room})
		rig.Must(t, err)
		rig.Is(t, errors.Is(rig.Err(resp.ReadBody(little)), short), true, "%s is bounded", encoding)
	}
}

// TestDecodingFlushes: what a server has flushed is there before more comes.
func TestDecodingFlushes(t *testing.T) {
	t.Parallel()
	for encoding, pieces := range map[string][]string{
		"gzip": encoded("gzip", "one", "two", ""), "zstd": encoded("zstd", "one", "two", ""),
		// As zlib writes them with Z_PARTIAL_FLUSH.
		"partial": {"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xca\xcfK\x05\x08", "\xa0\x92\xf2|\x80\x00", "\x03\x00E\x81\x11\x8c\x06\x00\x00\x00"},
	} {
		next := make(chan struct{})
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", strings.Replace(encoding, "partial", "gzip", 1))
			for _, piece := range pieces {
				_, _ = io.WriteString(w, piece)
				w.(http.Flusher).Flush()
				select {
				case <-next:
				case <-r.Context().Done():
				}
			}
		})
		resp, err := newClient(t, Config{}).Do(t.Context(), get(s.URL))
		rig.Must(t, err)
		buf := make([]byte, 99)
		for _, text := range []string{"one", "two"} {
			n, err := io.ReadAtLeast(resp.Body, buf, 3)
			rig.Is(t, string(buf[:n]), text, "flushed by %s, and %v", encoding, err)
			next <- struct{}{}
		}
		close(next)
		rig.Is(t, rig.Err(resp.Body.Read(buf)), io.EOF, "at the end")
		resp.Body.Close()
	}
}
