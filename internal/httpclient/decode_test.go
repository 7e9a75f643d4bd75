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
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"github.com/execagent/execagent/test/rig"
)

// gzipped and zstandard encode a text.
func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Name, z.Comment, z.Extra = "name", "comment", []byte("extra")
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

func zstandard(text string) string {
	z := rig.Value(zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)))
	defer z.Close()
	return string(z.EncodeAll([]byte(text), nil))
}

// TestDecoding: gzip and zstd are undone, whatever the request accepts, and the two headers go; all
// else is passed on. What is broken is an error.
func TestDecoding(t *testing.T) {
	t.Parallel()
	const text = "hello world"
	zipped, zst := gzipped(text), zstandard(text)
	skipped := "\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
	long := strings.Repeat("0123456789abcdef", 1<<18)
	for name, tt := range map[string]struct {
		method, encodings, body string
		want, err               string
		kept                    bool // as it came
	}{
		"gzip":                 {"GET", "gzip", zipped, text, "", false},
		"zstd":                 {"POST", "zstd", zst, text, "", false},
		"gzip, large":          {"GET", "gzip", gzipped(long), long, "", false},
		"zstd, large":          {"GET", "zstd", zstandard(long), long, "", false},
		"gzip, nothing":        {"GET", "gzip", gzipped(""), "", "", false},
		"zstd, nothing":        {"GET", "zstd", "", "", "", false},
		"an empty body":        {"GET", "gzip", "", "", "", false},
		"HEAD":                 {"HEAD", "gzip", zipped, "", "", false},
		"two members":          {"GET", "gzip", zipped + gzipped("more"), text, "", false},
		"garbage behind":       {"GET", "gzip", zipped + "garbage", text, "", false},
		"frames":               {"GET", "zstd", zst + skipped + zstandard(long), text + long, "", false},
		"a frame to skip":      {"GET", "zstd", skipped + zst, text, "", false},
		"upper case":           {"GET", "GZIP", zipped, zipped, "", true},
		"an alias":             {"GET", "x-gzip", zipped, zipped, "", true},
		"a list":               {"GET", "gzip, gzip", zipped, zipped, "", true},
		"two headers":          {"GET", "gzip|gzip", zipped, zipped, "", true},
		"others":               {"GET", "br", "x", "x", "", true},
		"gzip, cut":            {"GET", "gzip", zipped[:len(zipped)-1], "", "its gzip data has no end", false},
		"gzip, one byte":       {"GET", "gzip", "\x1f", "", "its gzip data has no end", false},
		"gzip, none":           {"GET", "gzip", "plain text", "", "decoding gzip: this is no gzip data", false},
		"gzip, other content":  {"GET", "gzip", zipped[:len(zipped)-8] + "abcd" + zipped[len(zipped)-4:], "", "decoding gzip: the checksum is wrong", false},
		"zstd, cut":            {"GET", "zstd", zst[:len(zst)-1], "", "its zstd data has no end", false},
		"zstd, none":           {"GET", "zstd", "plain text", "", "decoding zstd: ", false},
		"zstd, garbage behind": {"GET", "zstd", zst + "garbage", "", "decoding zstd: ", false},
		"zstd, a large window": {"GET", "zstd", "\x28\xb5\x2f\xfd\x00\x70\x09\x00\x00x", "", "decoding zstd: ", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Content-Encoding"] = strings.Split(tt.encodings, "|")
				w.Header()["Content-Length"] = []string{fmt.Sprint(len(tt.body))}
				_, _ = io.WriteString(w, tt.body)
			})
			taken, given := int64(0), 0
			req := &Request{Method: tt.method, URL: s.URL, Room: func(_ context.Context, n int64) (func(), error) {
				taken += n
				return func() { given++ }, nil
			}}
			resp, body, err := fetch(t, newClient(t, Config{}), req)
			if tt.err != "" {
				fails[*BodyError](t, err, tt.err)
			} else {
				rig.Must(t, err)
				rig.Is(t, body == tt.want, true, "%d bytes, want %d: %.80q", len(body), len(tt.want), body)
			}
			for _, h := range resp.Headers {
				rig.Is(t, tt.kept || h.Name != "content-encoding" && h.Name != "content-length", true, "there is %s: %s", h.Name, h.Value)
			}
			if tt.encodings == "zstd" && tt.body != "" {
				rig.Is(t, taken > leastWindow && taken <= MaxRoom && given == 1, true, "%d bytes were taken, and %d times given back", taken, given)
			}
		})
	}
}

// TestDecodingPart: a stream has what could be decoded before what is broken.
func TestDecodingPart(t *testing.T) {
	t.Parallel()
	const text = "hello world"
	for _, part := range []string{gzipped(text), zstandard(text)} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", map[bool]string{true: "gzip", false: "zstd"}[part[0] == 0x1f])
			_, _ = io.WriteString(w, part[:len(part)-1])
		})
		resp, err := newClient(t, Config{}).Do(t.Context(), get(s.URL))
		rig.Must(t, err)
		body, err := io.ReadAll(iotest.OneByteReader(resp.Body))
		rig.Is(t, string(body), text, "before the end, which is missing")
		fails[*BodyError](t, err, "has no end")
		resp.Body.Close()
	}
}

// TestDecodingIsBounded: decoded bytes count for who bounds a body, and a window has to be granted.
func TestDecodingIsBounded(t *testing.T) {
	t.Parallel()
	bombs := map[string]string{"gzip": gzipped(strings.Repeat("\x00", 4<<20)), "zstd": zstandard(strings.Repeat("\x00", 4<<20))}
	short := errors.New("no memory")
	for encoding, bomb := range bombs {
		rig.Is(t, len(bomb) < 64<<10, true, "%d bytes of %s", len(bomb), encoding)
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", encoding)
			_, _ = io.WriteString(w, bomb)
		})
		c := newClient(t, Config{})
		resp, err := c.Do(t.Context(), get(s.URL))
		rig.Must(t, err)
		_, err = resp.ReadBody(func(n int) ([]byte, error) {
			if n > 1<<20 {
				return nil, short
			}
			return make([]byte, 0, n), nil
		})
		rig.Is(t, errors.Is(err, short), true, "%s: %v", encoding, err)
		req := get(s.URL)
		req.Room = func(context.Context, int64) (func(), error) { return nil, short }
		_, _, err = fetch(t, c, req)
		rig.Is(t, errors.Is(err, short), encoding == "zstd", "%s without memory for a window: %v", encoding, err)
	}
}

// TestDecodingFlushes: what a server has flushed is there before more comes.
func TestDecodingFlushes(t *testing.T) {
	t.Parallel()
	// As zlib writes "one" and "two" with Z_PARTIAL_FLUSH.
	partial := []string{"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xca\xcfK\x05\x08", "\xa0\x92\xf2|\x80\x00", "\x03\x00E\x81\x11\x8c\x06\x00\x00\x00"}
	type flusher interface {
		io.WriteCloser
		Flush() error
	}
	for name, encoder := range map[string]func(io.Writer) flusher{
		"gzip": func(w io.Writer) flusher { return gzip.NewWriter(w) },
		"zstd": func(w io.Writer) flusher { return rig.Value(zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))) },
		"":     nil,
	} {
		t.Run("encoded by "+name, func(t *testing.T) {
			t.Parallel()
			next := make(chan struct{})
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", map[bool]string{true: "zstd", false: "gzip"}[name == "zstd"])
				var z flusher
				if encoder != nil {
					z = encoder(w)
				}
				for i, text := range []string{"one", "two", ""} {
					switch {
					case encoder == nil:
						_, _ = io.WriteString(w, partial[i])
					case text == "":
						_ = z.Close()
					default:
						_, _ = io.WriteString(z, text)
						_ = z.Flush()
					}
					w.(http.Flusher).Flush()
					select {
					case <-next:
					case <-r.Context().Done():
					}
				}
			})
			resp, err := newClient(t, Config{}).Do(t.Context(), get(s.URL))
			rig.Must(t, err)
			defer resp.Body.Close()
			buf := make([]byte, 99)
			for _, text := range []string{"one", "two"} {
				n, err := io.ReadAtLeast(resp.Body, buf, 3)
				rig.Is(t, string(buf[:n]), text, "flushed, and %v", err)
				next <- struct{}{}
			}
			close(next)
			n, err := resp.Body.Read(buf)
			rig.Is(t, n == 0 && err == io.EOF, true, "at the end %d bytes, %v", n, err)
		})
	}
}
