package protocol

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/contracttest"
	"github.com/execagent/execagent/test/rig"
)

// told is a message as the table of those that are taken has it.
func told(m Message) string {
	text := func(b []byte) string {
		if b == nil {
			return "-"
		}
		return string(b)
	}
	kind := []string{KindRequest: "request", KindNotification: "notification", KindResult: "result", KindError: "error"}[m.Kind]
	all := fmt.Sprintf("%s %s %q %s %s", kind, m.ID, m.Method, text(m.Params), text(m.Result))
	if m.Error != nil {
		all += fmt.Sprintf(" %d %s %s", m.Error.Code, m.Error.Message, m.Error.Data)
	}
	return all
}

func TestDecode(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/messages.txt", "taken", 3) {
		rig.Is(t, told(rig.Value(Decode([]byte(row[1])))), row[2], "%s", row[0])
		if kind, _, _ := strings.Cut(row[2], " "); kind != "error" { // whose data may be anything for us
			rig.Check(t, contracttest.Valid(strings.ToUpper(kind[:1])+kind[1:]+"Message", []byte(row[1])))
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/messages.txt", "refused", 3) {
		rig.Says(t, rig.Err(Decode([]byte(row[1]))), row[2], "%s", row[0])
	}
}

func TestDecodeErrorIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 1<<20)
	for _, in := range []string{
		`{"` + long + `":1,"` + long + `":2}`,
		`{"id":1,"method":"m","params":{"` + long + `":1,"` + long + `":2}}`,
		`{"id":` + strings.Repeat("9", 1<<20) + `,"method":"m"}`,
		`{"id":1,"error":{"code":` + strings.Repeat("9", 1<<20) + `,"message":""}}`,
		long,
	} {
		_, err := Decode([]byte(in))
		rig.Is(t, err != nil && len(err.Error()) <= 500, true, "%.40q...: %v is a short error", in, err)
	}
}

func TestIDString(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		id     ID
		want   string
		number int64
		ok     bool
	}{
		{ID{}, `0`, 0, true},
		{NoID, `-1`, -1, true},
		{NumberID(math.MinInt64), `-9223372036854775808`, math.MinInt64, true},
		{stringID(""), `""`, 0, false},
		{stringID("5"), `"5"`, 0, false},
		{stringID("a\"\\\n\x00é"), `"a\"\\\n\u0000é"`, 0, false},
	} {
		rig.Is(t, tt.id.String(), tt.want, "%#v.String()", tt.id)
		n, ok := tt.id.Number()
		rig.Is(t, fmt.Sprint(n, ok), fmt.Sprint(tt.number, tt.ok), "%#v.Number()", tt.id)
	}
	rig.Is(t, NumberID(5) == stringID("5"), false, "the id 5 equals the id \"5\"")
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	var err error = InvalidParams("%s is bad", "x")
	rig.Is(t, err.Error(), "x is bad (code -32602)", "the result")
}
