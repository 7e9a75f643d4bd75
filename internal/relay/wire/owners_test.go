package wire

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestStreamOwners(t *testing.T) {
	t.Parallel()
	o := make(StreamOwners)
	for i := range 128 {
		o.Set(fmt.Append(nil, "stream ", i), fmt.Sprint("owner ", i%3))
	}
	header := http.Header{HeaderStreamOwners: {o.Header()}}
	rig.Is(t, len(o.Header()) <= 3<<10, true, "bytes of the header: %v, at most %v", len(o.Header()), 3<<10)
	got := rig.Value(ParseStreamOwners(header.Get(HeaderStreamOwners)))
	rig.Is(t, len(got), 128, "owners")
	if !got.Known("stream 4") || !got.Is("stream 4", "owner 1") || got.Is("stream 4", "owner 2") || got.Known("stream 128") || got.Is("stream 128", "owner 2") {
		t.Error("it does not say what was said")
	}
	got.Forget("stream 4")
	rig.Is(t, fmt.Sprint(got.Known("stream 4"), got.Known("stream 5")), "false true", "streams that are known")
	none := rig.Value(ParseStreamOwners(""))
	rig.Is(t, none == nil && !none.Known("stream 4"), true, "nothing is known without a header: %v", none)
	for _, bad := range []string{"A", "AAAA", strings.Repeat("A", 23), "!", strings.Repeat("A", 2*16*maxStreamOwners)} {
		rig.Is(t, rig.Err(ParseStreamOwners(bad)) == nil, false, "%.40q passes", bad)
	}
}
