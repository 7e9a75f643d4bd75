package execpolicy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/pack"
)

// maxText bounds each string of a packed policy, in bytes.
const maxText = 16 << 20

// AppendPacked appends an encoded policy, for [ReadPacked] in another process of this program.
func AppendPacked(b []byte, p *Policy) []byte {
	for ; p != nil; p = p.Client() {
		b = append(b, 1, byte(p.Unmatched), byte(p.Opaque), byte(p.ForcedRm), pack.Bool(p.AllowUnasked))
		var rules []*rule.Rule
		var programs map[string][]string
		if p.Rules != nil {
			rules, programs = p.Rules.Rules(), p.Rules.Programs()
		}
		b = pack.AppendInt(b, len(rules))
		for _, r := range rules {
			b = append(b, byte(r.Decision), pack.Bool(r.IsCaseless()))
			b = pack.AppendString(pack.AppendString(b, r.Justification), r.Origin)
			b = pack.AppendInt(b, len(r.Pattern))
			for _, words := range r.Pattern {
				b = pack.AppendStrings(b, words)
			}
		}
		b = pack.AppendInt(b, len(programs))
		for _, name := range slices.Sorted(maps.Keys(programs)) {
			b = pack.AppendStrings(pack.AppendString(b, name), programs[name])
		}
	}
	return append(b, 0)
}

// ReadPacked decodes a policy that [AppendPacked] has encoded.
func ReadPacked(b []byte) (*Policy, error) {
	d := pack.NewDecoder(b)
	var layers []*Policy
	for d.Bool() {
		p := &Policy{Unmatched: readDecision(&d), Opaque: readDecision(&d), ForcedRm: readDecision(&d), AllowUnasked: d.Bool(), Rules: &rule.Set{}}
		for n := d.Int(); n > 0 && d.OK(); n-- {
			r := &rule.Rule{Decision: readDecision(&d)}
			caseless := d.Bool()
			r.Justification, r.Origin = d.String(maxText), d.String(maxText)
			for words := d.Int(); words > 0 && d.OK(); words-- {
				list := d.Strings(maxText)
				d.Require(len(list) > 0)
				r.Pattern = append(r.Pattern, list)
			}
			if d.Require(len(r.Pattern) > 0); !d.OK() {
				break
			}
			if caseless {
				r.Caseless()
			}
			p.Rules.Add(r)
		}
		for n := d.Int(); n > 0 && d.OK(); n-- {
			name := d.String(maxText)
			p.Rules.DefineHost(name, d.Strings(maxText))
		}
		layers = append(layers, p)
	}
	if d.Require(len(layers) > 0); d.End() != nil {
		return nil, fmt.Errorf("decoding the rules about commands: %w", d.End())
	}
	all := layers[len(layers)-1]
	for i := len(layers) - 2; i >= 0; i-- {
		all = layers[i].With(all)
	}
	return all, nil
}

func readDecision(d *pack.Decoder) rule.Decision {
	v := rule.Decision(d.Byte())
	if v > rule.Forbidden {
		d.Require(false)
		return rule.Forbidden
	}
	return v
}
