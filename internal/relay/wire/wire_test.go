package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

func TestDecodeStrict(t *testing.T) {
	t.Parallel()
	key := &PublicKey{Suite: KeySuite, X25519: bytes.Repeat([]byte{1}, X25519KeySize), MLKEM768: bytes.Repeat([]byte{2}, MLKEM768KeySize)}
	keyText := rig.Value(json.Marshal(key))
	good := `{"harness_public_key":` + string(keyText) + `,"harness_key_authorization":"a","executor_registration_id":""}`
	change := func(old, text string) string {
		rig.Is(t, strings.Contains(good, old), true, "%s is in %s", old, good)
		return strings.Replace(good, old, text, 1)
	}
	for _, tt := range []struct{ name, text, wantErr string }{
		{"good", good, ""},
		{"blanks", "\r\n\t " + strings.ReplaceAll(good, ",", " ,\n") + " \n", ""},
		{"escaped name", change("suite", `\u0073uite`), ""},
		{"twice", change(`{`, `{"executor_registration_id":"x",`), "duplicate member name"},
		{"twice, escaped", change(`{`, `{"\u0065xecutor_registration_id":"x",`), "duplicate member name"},
		{"other case", change("harness_public_key", "Harness_Public_Key"), "unknown field `Harness_Public_Key`"},
		{"both cases", change(`{`, `{"Executor_Registration_ID":"x",`), "unknown field `Executor_Registration_ID`"},
		{"unknown", change(`{`, `{"x":1,`), "unknown field `x`"},
		{"twice in the key", change(`"suite"`, `"suite":"`+KeySuite+`","suite"`), "duplicate member name"},
		{"other case in the key", change(`"suite"`, `"Suite"`), "unknown field `harness_public_key.Suite`"},
		{"unknown in the key", change(`"suite"`, `"x":1,"suite"`), "unknown field `harness_public_key.x`"},
		{"missing", change(`"harness_key_authorization":"a",`, ""), "missing field `harness_key_authorization`"},
		{"missing in the key", change(`"suite":"`+KeySuite+`",`, ""), "missing field `harness_public_key.suite`"},
		{"null", change(`"a"`, "null"), "harness_key_authorization: invalid type: null"},
		{"number", change(`"a"`, "1"), "harness_key_authorization: invalid type: number"},
		{"no key", change(string(keyText), "null"), "harness_public_key: invalid type: null"},
		{"other suite", change("AESGCM", "ChaChaPoly"), "harness_public_key.suite: unknown variant"},
		{"short key", change(`"x25519_public_key":"AQEB`, `"x25519_public_key":"`), "harness_public_key.x25519_public_key: 29 bytes, not 32"},
		{"long key", change(`"mlkem768_public_key":"`, `"mlkem768_public_key":"AgIC`), "harness_public_key.mlkem768_public_key: 1187 bytes, not 1184"},
		{"line break in a key", change(`"x25519_public_key":"AQEB`, `"x25519_public_key":"AQEB\r\n`), "x25519_public_key: invalid base64"},
		{"stray bits in a key", change(`AQE=`, `AQF=`), "x25519_public_key: invalid base64"},
		{"lone surrogate", change(`"a"`, `"\ud800"`), "surrogate"},
		{"not UTF-8", change(`"a"`, "\"\xff\""), "UTF-8"},
		{"more", good + "{}", "trailing characters"},
		{"deep", change(`"a"`, strings.Repeat("[", strictjson.MaxDepth)+strings.Repeat("]", strictjson.MaxDepth)), "nesting"},
		{"cut", good[:len(good)-1], "end of input"},
		{"list", "[]", "expected an object"},
		{"nothing", "", "end of input"},
	} {
		var got ValidateRequest
		err := strictjson.Unmarshal([]byte(tt.text), &got)
		switch {
		case tt.wantErr != "":
			rig.Is(t, strings.Contains(fmt.Sprint(err), tt.wantErr), true, "%s: %q is in %v", tt.name, tt.wantErr, err)
		case err != nil || !got.HarnessPublicKey.Equal(key) || got.HarnessKeyAuthorization != "a" || got.ExecutorRegistrationID != "":
			t.Errorf("%s: %+v, %v", tt.name, got, err)
		}
	}
}

// TestPublicKeyJSON: encoding/json reads a key as strictly as package strictjson does.
func TestPublicKeyJSON(t *testing.T) {
	t.Parallel()
	want := PublicKey{Suite: KeySuite, X25519: make([]byte, X25519KeySize), MLKEM768: make([]byte, MLKEM768KeySize)}
	text := rig.Value(json.Marshal(struct{ Key PublicKey }{want}))
	var got struct{ Key PublicKey }
	rig.Must(t, json.Unmarshal(text, &got))
	rig.Is(t, got.Key.Equal(&want), true, "%+v is the same key", got)
	for _, change := range [][2]string{{`"suite"`, `"SUITE"`}, {`"suite"`, `"suite":"x","suite"`}, {`AA=`, `AB=`}, {`AAA`, `AAA\n`}} {
		err := json.Unmarshal(bytes.Replace(text, []byte(change[0]), []byte(change[1]), 1), &got)
		rig.Is(t, err == nil, false, "%s for %s is taken", change[1], change[0])
	}
}

// FuzzDecodeStrict: a body that is taken means the same to a lenient decoder, be it one
// that takes the first or the last of two members of the same name.
func FuzzDecodeStrict(f *testing.F) {
	key := rig.Value(json.Marshal(PublicKey{Suite: KeySuite, X25519: make([]byte, X25519KeySize), MLKEM768: make([]byte, MLKEM768KeySize)}))
	f.Add(`{"harness_public_key":` + string(key) + `,"harness_key_authorization":"\u00e9","executor_registration_id":"r"}`)
	f.Add(`{"harness_public_key":` + string(key) + `,"harness_public_key":{},"Harness_Key_Authorization":"a","executor_registration_id":"r"}`)
	f.Fuzz(func(t *testing.T, text string) {
		var got ValidateRequest
		if strictjson.Unmarshal([]byte(text), &got) != nil {
			return
		}
		var lenient struct {
			ID  string `json:"executor_registration_id"`
			Key struct {
				Suite    string
				X25519   []byte `json:"x25519_public_key"`
				MLKEM768 []byte `json:"mlkem768_public_key"`
			} `json:"harness_public_key"`
			Authorization string `json:"harness_key_authorization"`
		}
		rig.Must(t, json.Unmarshal([]byte(text), &lenient))
		want := &PublicKey{Suite: lenient.Key.Suite, X25519: lenient.Key.X25519, MLKEM768: lenient.Key.MLKEM768}
		rig.Is(t, got.HarnessPublicKey.Equal(want), true, "the key of %q is the same", text)
		rig.Is(t, got.ExecutorRegistrationID, lenient.ID, "the registration of %q", text)
		rig.Is(t, got.HarnessKeyAuthorization, lenient.Authorization, "the authorization of %q", text)
	})
}
