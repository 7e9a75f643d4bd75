package wire

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestStreamOwners(t *testing.T) {
	t.Parallel()
	o := make(StreamOwners)
	for i := range 128 {
		o.Set(fmt.Append(nil, "stream ", i), fmt.Sprint("owner ", i%3))
	}
	header := http.Header{HeaderStreamOwners: {o.Header()}}
	if n := len(o.Header()); n > 3<<10 {
		t.Errorf("the header has %d bytes", n)
	}
	got, err := ParseStreamOwners(header.Get(HeaderStreamOwners))
	if err != nil || len(got) != 128 {
		t.Fatalf("got %d owners, %v", len(got), err)
	}
	if !got.Known("stream 4") || !got.Is("stream 4", "owner 1") || got.Is("stream 4", "owner 2") || got.Known("stream 128") || got.Is("stream 128", "owner 2") {
		t.Error("it does not say what was said")
	}
	got.Forget("stream 4")
	if got.Known("stream 4") || !got.Known("stream 5") {
		t.Error("another one was forgotten")
	}
	if none, err := ParseStreamOwners(""); none != nil || err != nil || none.Known("stream 4") {
		t.Errorf("without a header: %v, %v", none, err)
	}
	for _, bad := range []string{"A", "AAAA", strings.Repeat("A", 23), "!", strings.Repeat("A", 2*16*maxStreamOwners)} {
		if _, err := ParseStreamOwners(bad); err == nil {
			t.Errorf("%.40q passes", bad)
		}
	}
}
