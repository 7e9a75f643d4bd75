package protocol

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/execagent/execagent/test/rig"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	one := func(params string) Message { // a request with the id 1 and the method "m"
		return Message{Kind: KindRequest, ID: NumberID(1), Method: "m", Params: []byte(params)}
	}
	bare := Message{Kind: KindRequest, ID: NumberID(1), Method: "m"}
	for _, tt := range []struct {
		name, in string
		want     Message
	}{
		{"request", `{"id":1,"method":"m","params":{}}`, one(`{}`)},
		{"request without params", `{"id":1,"method":"m"}`, bare},
		{"params null", `{"id":1,"method":"m","params":null}`, one(`null`)},
		{"positional params", `{"id":1,"method":"m","params":[ 1 , 2 ]}`, one(`[ 1 , 2 ]`)},
		{"members in any order", `{"params":{"a":1},"method":"m","id":1}`, one(`{"a":1}`)},
		{"white space everywhere", " \t\r\n{ \"id\" : 1 , \"method\" :\n\"m\" } \r\n\t ", bare},
		{"empty method", `{"id":1,"method":""}`, Message{Kind: KindRequest, ID: NumberID(1)}},
		{"escaped method", `{"id":1,"method":"a\u002fb\/c\u00e9\ud83d\ude00"}`, Message{Kind: KindRequest, ID: NumberID(1), Method: "a/b/cé😀"}},
		{"escaped member names", `{"\u0069d":1,"\u006dethod":"m"}`, bare},
		{"names are exact", `{"id":1,"method":"m","Method":"x","ID":{},"PARAMS":1}`, bare},

		{"id string", `{"id":"a","method":"m"}`, Message{Kind: KindRequest, ID: stringID("a"), Method: "m"}},
		{"id empty string", `{"id":"","method":"m"}`, Message{Kind: KindRequest, ID: stringID(""), Method: "m"}},
		{"id string of digits", `{"id":"1","method":"m"}`, Message{Kind: KindRequest, ID: stringID("1"), Method: "m"}},
		{"id negative", `{"id":-7,"method":"m"}`, Message{Kind: KindRequest, ID: NumberID(-7), Method: "m"}},
		{"id minus zero", `{"id":-0,"method":"m"}`, Message{Kind: KindRequest, ID: NumberID(0), Method: "m"}},
		{"id largest", `{"id":9223372036854775807,"method":"m"}`, Message{Kind: KindRequest, ID: NumberID(math.MaxInt64), Method: "m"}},
		{"id smallest", `{"id":-9223372036854775808,"method":"m"}`, Message{Kind: KindRequest, ID: NumberID(math.MinInt64), Method: "m"}},

		{"jsonrpc is ignored", `{"jsonrpc":[3],"id":1,"method":"m","zzz":{"a":[null]}}`, bare},
		{"request with result and error", `{"id":1,"method":"m","result":5,"error":6}`,
			Message{Kind: KindRequest, ID: NumberID(1), Method: "m", Result: []byte(`5`)}},
		{"trace", `{"id":1,"method":"m","trace":{"traceparent":"00-1-2-01","tracestate":null,"x":1}}`, bare},
		{"trace null", `{"id":1,"method":"m","trace":null}`, bare},
		{"trace of a notification is not looked at", `{"method":"m","trace":5}`, Message{Kind: KindNotification, Method: "m"}},

		{"notification", `{"method":"m","params":{"a":1}}`, Message{Kind: KindNotification, Method: "m", Params: []byte(`{"a":1}`)}},
		{"notification with result", `{"method":"m","result":1}`, Message{Kind: KindNotification, Method: "m", Result: []byte(`1`)}},
		{"result", `{"id":1,"result":{"a":1}}`, Message{Kind: KindResult, ID: NumberID(1), Result: []byte(`{"a":1}`)}},
		{"result null", `{"id":"x","result":null}`, Message{Kind: KindResult, ID: stringID("x"), Result: []byte(`null`)}},
		{"error", `{"error":{"code":-32601,"message":"no","data":[1]},"id":1}`,
			Message{Kind: KindError, ID: NumberID(1), Error: &Error{Code: CodeMethodNotFound, Message: "no", Data: []byte("[1]")}}},
	} {
		rig.Same(t, tt.name, tt.want, rig.Value(Decode([]byte(tt.in))), cmp.AllowUnexported(ID{}))
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
