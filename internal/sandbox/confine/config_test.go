package confine

import (
	"reflect"
	"strings"
	"testing"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// fill gives every field a value that is not zero and differs from most others,
// so that a field which encode or decodeConfig forgets or mixes up is noticed.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(int64(*n) << 32)
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Uint16:
		v.SetUint(uint64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n) << 40)
	case reflect.String:
		v.SetString("\xff" + strings.Repeat("x", *n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, n)
		}
	default:
		panic(v.Kind())
	}
}

// sample returns a config in which every field has a value of its own.
func sample(t testing.TB) *config {
	t.Helper()
	c := config{Command: Command{Policy: &sandbox.Policy{
		Confined: true, FullRead: true,
		Rules: []sandbox.Rule{{Path: "/"}, {Path: "/a\xff", Access: sandbox.Write, Origin: sandbox.Asked}},
	}}}
	policy, n := c.Policy, 0
	fill(reflect.ValueOf(&c).Elem(), &n)
	c.Policy = policy // package sandbox tests how a policy is encoded
	return &c
}

// TestConfig: what is encoded is decoded to the same config.
func TestConfig(t *testing.T) {
	t.Parallel()
	for _, want := range []*config{sample(t), {Command: Command{Policy: &sandbox.Policy{}}}} {
		encoded := rig.Value(want.encode())
		got := rig.Value(decodeConfig(encoded))
		rig.Same(t, "what came of it", want, got)
	}
}

// TestConfigMalformed: too few bytes, or one too many, are an error.
func TestConfigMalformed(t *testing.T) {
	t.Parallel()
	encoded := rig.Value(sample(t).encode())
	for n := range encoded {
		rig.Is(t, rig.Err(decodeConfig(encoded[:n])) != nil, true, "%d of %d bytes are refused", n, len(encoded))
	}
	rig.Is(t, rig.Err(decodeConfig(append(encoded, 0))) != nil, true, "a byte too many is refused")
	c := sample(t)
	c.Backend.Layers = 1 << len(sandbox.AllLayers())
	encoded = rig.Value(c.encode())
	rig.Is(t, rig.Err(decodeConfig(encoded)) != nil, true, "a layer that has no row is refused")
}

// FuzzConfig: whatever can be decoded is encoded to the same bytes.
func FuzzConfig(f *testing.F) {
	encoded := rig.Value(sample(f).encode())
	f.Add(encoded)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decodeConfig(data)
		if err != nil {
			return
		}
		rig.Is(t, string(rig.Value(c.encode())), string(data), "encoded again")
	})
}

// TestPrepareRefuses: Prepare returns an error for a command that no init could confine as its policy
// says. Package sandbox tests which backends a policy accepts.
func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	confined, free, argv := &sandbox.Policy{Confined: true}, &sandbox.Policy{Network: sandbox.NetworkEnabled}, []string{"true"}
	for want, command := range map[string]Command{
		"argv is empty":          {Policy: confined, Backend: full()},
		"restricts nothing":      {Policy: free, Backend: full(), Argv: argv, Rules: []byte("rules")},
		"no system call filter":  {Policy: &sandbox.Policy{}, Argv: argv},
		"argument list too long": {Policy: confined, Backend: full(), Argv: argv, Env: []string{strings.Repeat("x", maxConfig)}},
	} {
		p, err := command.Prepare()
		p.Close()
		rig.Says(t, err, want, "the error")
		rig.Says(t, err, "sandbox", "the error")
	}
}
