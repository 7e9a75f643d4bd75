package auth

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// vectors is what the reference said live.
type vectors struct {
	Seed       string         `json:"ed25519_seed_hex"`
	PrivateKey string         `json:"private_key_pkcs8_base64"`
	RuntimeID  string         `json:"agent_runtime_id"`
	Header     map[string]any `json:"jwt_header"`
	Claims     map[string]any `json:"jwt_claims"`
	Task       struct {
		Timestamp, Signature string
	} `json:"task_registration"`
	Assertion struct {
		TaskID    string `json:"task_id"`
		Timestamp string
		Text      string `json:"signed_text"`
		JSON      string
		Header    string `json:"authorization_header"`
	}
	Encrypted struct {
		ID        string `json:"encrypted_task_id"`
		Plaintext string
	} `json:"encrypted_task_id_example"`
}

func readVectors(t testing.TB) *vectors {
	t.Helper()
	data := rig.Value(os.ReadFile("testdata/agent-identity.json"))
	v := new(vectors)
	rig.Must(t, json.Unmarshal(data, v))
	return v
}

// testKeys are those of the vectors.
func testKeys(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	seed := rig.Value(hex.DecodeString(readVectors(t).Seed))
	key := ed25519.NewKeyFromSeed(seed)
	return key.Public().(ed25519.PublicKey), key
}

func TestAssertionVector(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	public, private := testKeys(t)
	at := rig.Value(time.Parse(time.RFC3339, v.Assertion.Timestamp))
	a := &Assertion{RuntimeID: v.RuntimeID, TaskID: v.Assertion.TaskID, Time: at.Add(999 * time.Millisecond)}
	rig.Is(t, string(a.text()), v.Assertion.Text, "signed text")
	header := rig.Value(a.header(private))
	rig.Is(t, header, v.Assertion.Header, "header")
	parsed := rig.Value(ParseAssertion(v.Assertion.Header))
	rig.Is(t, parsed.RuntimeID+" "+parsed.TaskID, v.RuntimeID+" "+v.Assertion.TaskID, "ids that were parsed")
	rig.Is(t, parsed.Time.Equal(at), true, "time %v is %v", parsed.Time, at)
	rig.Check(t, parsed.Verify(public))
}

func TestVerifyAssertion(t *testing.T) {
	t.Parallel()
	public, private := testKeys(t)
	another, _, err := ed25519.GenerateKey(nil)
	rig.Must(t, err)
	made := func(change func(*Assertion)) *Assertion {
		a := &Assertion{RuntimeID: "agent-rt-1", TaskID: "task", Time: time.Now().UTC()}
		rig.Value(a.header(private))
		change(a)
		return a
	}
	for _, tt := range []struct {
		name string
		a    *Assertion
		key  ed25519.PublicKey
		ok   bool
	}{
		{"good", made(func(*Assertion) {}), public, true},
		{"another key", made(func(*Assertion) {}), another, false},
		{"no key", made(func(*Assertion) {}), nil, false},
		{"key too short", made(func(*Assertion) {}), public[:31], false},
		{"runtime id", made(func(a *Assertion) { a.RuntimeID += "0" }), public, false},
		{"task id", made(func(a *Assertion) { a.TaskID += "0" }), public, false},
		{"time", made(func(a *Assertion) { a.Time = a.Time.Add(time.Second) }), public, false},
		{"signature", made(func(a *Assertion) { a.signature[63] ^= 1 }), public, false},
		{"no signature", made(func(a *Assertion) { a.signature = nil }), public, false},
	} {
		rig.Is(t, tt.a.Verify(tt.key) == nil, tt.ok, "%s: verified", tt.name)
	}
}

func TestParseAssertionStrict(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	encode := func(text string) string { return assertionScheme + base64.RawURLEncoding.EncodeToString([]byte(text)) }
	change := func(old, new string) string {
		rig.Is(t, strings.Contains(v.Assertion.JSON, old), true, "%q is in the vector", old)
		return encode(strings.Replace(v.Assertion.JSON, old, new, 1))
	}
	for name, header := range map[string]string{
		"empty":                "",
		"scheme":               "Bearer " + strings.TrimPrefix(v.Assertion.Header, assertionScheme),
		"scheme of other case": "agentassertion " + strings.TrimPrefix(v.Assertion.Header, assertionScheme),
		"two blanks":           "AgentAssertion  " + strings.TrimPrefix(v.Assertion.Header, assertionScheme),
		"padding":              v.Assertion.Header + "=",
		"line break":           v.Assertion.Header[:40] + "\r\n" + v.Assertion.Header[40:],
		"standard alphabet":    assertionScheme + base64.RawStdEncoding.EncodeToString([]byte(v.Assertion.JSON+"\xff\xff\xff")),
		"too long":             encode(v.Assertion.JSON + strings.Repeat(" ", maxAssertion)),
		"not JSON":             encode("x"),
		"array":                encode("[]"),
		"member missing":       change(`"task_id":"task-sealed-1",`, ""),
		"member unknown":       change(`"task_id"`, `"x":1,"task_id"`),
		"member twice":         change(`"task_id"`, `"task_id":"task-sealed-1","task_id"`),
		"member respelled":     change(`"task_id"`, `"Task_id"`),
		"something behind":     encode(v.Assertion.JSON + "{}"),
		"runtime empty":        change(`"agent-rt-1"`, `""`),
		"runtime with colon":   change(`"agent-rt-1"`, `"agent:rt"`),
		"runtime with slash":   change(`"agent-rt-1"`, `"agent/rt"`),
		"runtime dots":         change(`"agent-rt-1"`, `".."`),
		"runtime with blank":   change(`"agent-rt-1"`, `"agent rt"`),
		"runtime too long":     change(`"agent-rt-1"`, `"`+strings.Repeat("a", maxRuntimeID+1)+`"`),
		"runtime no text":      change(`"agent-rt-1"`, `1`),
		"task empty":           change(`"task-sealed-1"`, `""`),
		"task null":            change(`"task-sealed-1"`, `null`),
		"task with control":    change(`"task-sealed-1"`, `"a\u0000b"`),
		"task too long":        change(`"task-sealed-1"`, `"`+strings.Repeat("a", maxTaskID+1)+`"`),
		"time with fraction":   change(`31:11Z`, `31:11.5Z`),
		"time with comma":      change(`31:11Z`, `31:11,0Z`),
		"time with offset":     change(`31:11Z`, `31:11+00:00`),
		"time lower case":      change(`31:11Z`, `31:11z`),
		"time impossible":      change(`2026-11-20`, `2026-02-30`),
		"time short":           change(`T12:`, `T2:`),
		"signature short":      change(`evYBYx8B`, ``),
		"signature unpadded":   change(`==`, ``),
		"signature line break": change(`evYB`, `evYB\n`),
		"signature loose bits": change(`TCw==`, `TCx==`),
	} {
		rig.Is(t, rig.Err(ParseAssertion(header)) == nil, false, "%s: accepted %q", name, header)
	}
	// The sender may order the members as it likes, and put blanks between them.
	// The reference's registry may be as lenient.
	rig.Check(t, rig.Err(ParseAssertion(encode(" "+strings.Replace(v.Assertion.JSON, ",", ", ", 1)))))
}

func FuzzParseAssertion(f *testing.F) {
	v := readVectors(f)
	f.Add(v.Assertion.JSON)
	f.Add(`{"agent_runtime_id":"a","signature":"","task_id":"b","timestamp":"2026-11-20T12:31:11Z"}`)
	public, private := testKeys(f)
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAssertion(assertionScheme + base64.RawURLEncoding.EncodeToString([]byte(text)))
		if err != nil {
			return
		}
		valid := a.Verify(public) == nil
		id, _, _ := strings.Cut(string(a.text()), ":")
		rig.Is(t, id, a.RuntimeID, "the signed text %q can be read in two ways", a.text())
		again := rig.Value(ParseAssertion(rig.Value(a.header(private))))
		rig.Is(t, again.RuntimeID+" "+again.TaskID, a.RuntimeID+" "+a.TaskID, "ids of %q", text)
		rig.Is(t, again.Time.Equal(a.Time), true, "time %v is that of %q", again.Time, text)
		rig.Is(t, valid && again.Verify(public) != nil, false, "%q is no longer valid", text)
	})
}
