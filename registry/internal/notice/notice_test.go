package notice

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/test/rig"
)

var kinds = []Kind{
	Online, Offline, Open, Detach, Moved, Refused,
	Absent, Unknown, Taken, Beat, Leave,
}

// TestLargestNotice: ids as long as a rendezvous lets them be fit into a notice.
func TestLargestNotice(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		want := Notice{
			Kind:         kind,
			Registration: strings.Repeat("r", 128),
			Revision:     math.MaxUint64,
			Stream:       strings.Repeat("\x01", frame.MaxStreamID),
			Principal:    "agent:" + strings.Repeat("<", 256),
			Acknowledges: true, Detached: true, Revoked: true, Intruder: true, Failing: true,
			Bytes: math.MaxInt,
		}
		text := want.Encode()
		got, ok := Decode(text)
		rig.Is(t, got, want, "%s, %d bytes: %t", kind, len(text), ok)
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("s", frame.MaxStreamID+1)
	for _, tt := range []struct {
		name, text string
		want       Notice
		ok         bool
	}{
		{"beat", `{"kind":"beat"}`, Notice{Kind: Beat}, true},
		{"of a newer server", `{"kind":"newer","more":[1]}`, Notice{Kind: "newer"}, true},
		{"longest stream id", `{"kind":"open","stream":"` + long[1:] + `"}`, Notice{Kind: Open, Stream: long[1:]}, true},
		{"longer stream id", `{"kind":"open","stream":"` + long + `"}`, Notice{}, false},
		{"longest", `{"kind":"beat"}` + strings.Repeat(" ", maxSize-15), Notice{Kind: Beat}, true},
		{"longer", `{"kind":"beat"}` + strings.Repeat(" ", maxSize-14), Notice{}, false},
		{"negative revision", `{"kind":"online","revision":-1}`, Notice{}, false},
		{"no object", `[]`, Notice{}, false},
		{"two", `{"kind":"beat"}{}`, Notice{}, false},
		{"nothing", "", Notice{}, false},
	} {
		got, ok := Decode([]byte(tt.text))
		rig.Is(t, fmt.Sprintf("%+v %t", got, ok), fmt.Sprintf("%+v %t", tt.want, tt.ok), "%s", tt.name)
	}
}

// FuzzNotice: a notice that is read is bounded, and the same after it was written and read
// again.
func FuzzNotice(f *testing.F) {
	for _, kind := range kinds {
		f.Add(fmt.Appendf(nil, `{"kind":%q,"registration":"reg_1","stream":"stream","revision":2,"bytes":9}`, kind))
	}
	f.Add(Notice{Kind: Open, Stream: "\x00<\u2028é", Principal: "key:1", Acknowledges: true, Detached: true, Intruder: true, Failing: true, Bytes: -1}.Encode())
	f.Fuzz(func(t *testing.T, text []byte) {
		got, ok := Decode(text)
		if !ok {
			rig.Is(t, got, (Notice{}), "%q is refused, but for", text)
			return
		}
		rig.Is(t, len(text) <= maxSize && len(got.Stream) <= frame.MaxStreamID, true, "%d bytes are not too long", len(text))
		// Escapes may have made it longer than it may be.
		if again := got.Encode(); len(again) <= maxSize {
			back, ok := Decode(again)
			rig.Is(t, ok && back == got, true, "%q is %+v, and that %+v", text, got, back)
		}
	})
}
