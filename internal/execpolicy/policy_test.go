package execpolicy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/test/rig"
)

// rulesOf makes rules of lines such as "forbidden git push".
func rulesOf(lines ...string) *rule.Set {
	s := &rule.Set{}
	for _, line := range lines {
		words := strings.Fields(line)
		r := &rule.Rule{}
		r.Decision = rig.Value(rule.ParseDecision(words[0]))
		for _, word := range words[1:] {
			r.Pattern = append(r.Pattern, []string{word})
		}
		s.Add(r)
	}
	return s
}

// find is a PATH of /usr/bin, which has every program but probe and words of the shell.
func find(program string) string {
	switch {
	case program == "cd" || program == "probe":
		return ""
	case strings.Contains(program, "/"):
		return rule.Absolute(program, "/dir", "/home")
	}
	return "/usr/bin/" + program
}

// TestStart: the strictest decision about any of the commands holds.
func TestStart(t *testing.T) {
	t.Parallel()
	some := []string{"allow ok", "prompt ask", "forbidden probe", "allow rm -rf okdir"}
	for _, tt := range []struct {
		name   string
		rules  []string
		policy Policy
		argv   []string
		want   rule.Decision
		reason string
	}{
		{"no rules", nil, Policy{}, []string{"x"}, rule.Allow, ""},
		{"nothing", nil, Policy{Unmatched: rule.Forbidden}, nil, rule.Forbidden, "`` rejected: no rule allows it"},
		{"unmatched", some, Policy{Unmatched: rule.Prompt}, []string{"x", "y z"}, rule.Prompt, "`x 'y z'` requires approval by policy"},
		{"unmatched forbidden", some, Policy{Unmatched: rule.Forbidden}, []string{"x"}, rule.Forbidden, "`x` rejected: no rule allows it; this one would: " + `prefix_rule(pattern=["x"], decision="allow")`},
		{"allowed", some, Policy{Unmatched: rule.Forbidden}, []string{"ok", "y"}, rule.Allow, ""},
		{"forbidden", some, Policy{}, []string{"probe", "y"}, rule.Forbidden, "`probe y` rejected: policy forbids commands starting with `probe`"},
		{"prompt", some, Policy{}, []string{"ask"}, rule.Prompt, "`ask` requires approval by policy"},

		{"script", some, Policy{Unmatched: rule.Forbidden}, []string{"bash", "-lc", "ok a && ok b"}, rule.Allow, ""},
		{"one of a script", some, Policy{}, []string{"bash", "-lc", "ok && probe | ok"}, rule.Forbidden, "`bash -lc 'ok && probe | ok'` rejected: policy forbids commands starting with `probe`"},
		{"unmatched in a script", some, Policy{Unmatched: rule.Prompt}, []string{"/bin/sh", "-c", "ok; x"}, rule.Prompt, "`/bin/sh -c 'ok; x'` requires approval by policy"},
		{"opaque", some, Policy{Opaque: rule.Prompt}, []string{"bash", "-c", "(ok)"}, rule.Prompt, "`bash -c '(ok)'` requires approval by policy"},
		{"opaque is not unmatched", some, Policy{Opaque: rule.Allow, Unmatched: rule.Forbidden}, []string{"bash", "-c", "(ok)"}, rule.Allow, ""},
		{"no script", some, Policy{Opaque: rule.Forbidden}, []string{"bash", "x"}, rule.Allow, ""},
		{"shell forbidden", []string{"forbidden bash"}, Policy{}, []string{"bash", "-c", "ok"}, rule.Forbidden, "`bash -c ok` rejected: policy forbids commands starting with `bash`"},
		{"shell allowed", []string{"allow bash"}, Policy{Unmatched: rule.Prompt}, []string{"bash", "-c", "x"}, rule.Prompt, "`bash -c x` requires approval by policy"},
		{"opaque, shell allowed", []string{"allow bash"}, Policy{Opaque: rule.Prompt}, []string{"bash", "-c", "(x)"}, rule.Allow, ""},

		{"forced rm", some, Policy{ForcedRm: rule.Forbidden}, []string{"rm", "-rf", "x"}, rule.Forbidden, "`rm -rf x` rejected: rm -f style commands are not permitted. Use a safer approach"},
		{"forced rm, allowed", some, Policy{ForcedRm: rule.Forbidden}, []string{"rm", "-rf", "okdir"}, rule.Allow, ""},
		{"forced rm in a script", some, Policy{ForcedRm: rule.Prompt}, []string{"bash", "-c", "ok && rm -f x"}, rule.Prompt, "`bash -c 'ok && rm -f x'` requires approval by policy"},
		{"forced rm, opaque", some, Policy{ForcedRm: rule.Prompt}, []string{"bash", "-c", "(rm -f x)"}, rule.Prompt, "`bash -c '(rm -f x)'` requires approval by policy"},
		{"rm", some, Policy{ForcedRm: rule.Forbidden}, []string{"rm", "x"}, rule.Allow, ""},
		{"forced rm is milder", some, Policy{ForcedRm: rule.Prompt, Unmatched: rule.Forbidden}, []string{"rm", "-f", "x"}, rule.Forbidden, "`rm -f x` rejected: no rule allows it; this one would: " + `prefix_rule(pattern=["rm"], decision="allow")`},
		{"missing in a script", some, Policy{Unmatched: rule.Forbidden}, []string{"sh", "-c", "ok; git -C /srv log"}, rule.Forbidden,
			"`sh -c 'ok; git -C /srv log'` rejected: no rule allows `git -C /srv log`; this one would: " + `prefix_rule(pattern=["git", "-C", "/srv", "log"], decision="allow")`},
		{"opaque forbidden", some, Policy{Opaque: rule.Forbidden}, []string{"sh", "-c", "(ok)"}, rule.Forbidden, "`sh -c '(ok)'` rejected: no rule allows a script that cannot be taken apart: start its commands one by one"},

		{"path", []string{"forbidden /usr/bin/x"}, Policy{}, []string{"x"}, rule.Forbidden, "`x` rejected: policy forbids commands starting with `/usr/bin/x`"},
		{"path allowed", []string{"allow /usr/bin/x"}, Policy{Unmatched: rule.Forbidden}, []string{"x"}, rule.Allow, ""},
		{"path allowed, name forbidden", []string{"allow /usr/bin/x", "forbidden x"}, Policy{}, []string{"x"}, rule.Forbidden, "`x` rejected: policy forbids commands starting with `x`"},
		{"exact path hides", []string{"allow /usr/bin/x", "forbidden x"}, Policy{}, []string{"/usr/bin/x"}, rule.Allow, ""},
		{"name of a path", []string{"forbidden x"}, Policy{}, []string{"./x"}, rule.Forbidden, "`./x` rejected: policy forbids commands starting with `x`"},
		{"word of the shell", []string{"allow cd", "allow ok"}, Policy{Unmatched: rule.Forbidden}, []string{"sh", "-c", "cd x && ok"}, rule.Allow, ""},
		{"as it is spelled", []string{"allow ./x"}, Policy{Unmatched: rule.Forbidden}, []string{"./x"}, rule.Allow, ""},
	} {
		p := tt.policy
		if tt.rules != nil {
			p.Rules = rulesOf(tt.rules...)
		}
		v := p.Start(tt.argv, find)
		rig.Is(t, v.Decision, tt.want, "%s", tt.name)
		rig.Is(t, v.Reason(), tt.reason, "%s: the reason", tt.name)
	}
}

// TestOpaqueEvasions: what escapes the rules of the reference as opaque does not escape here, where
// the program can be read.
func TestOpaqueEvasions(t *testing.T) {
	t.Parallel()
	p := &Policy{Rules: rulesOf("forbidden probe")}
	for _, text := range []string{
		"(probe x)", "probe > f", "X=1 probe", `probe "$HOME"`, "if true; then probe; fi", "! probe", "{ probe; }", "probe &", "time probe", "x=$(probe)",
		"f() { probe; }; f", "cat <<E\n$(probe)\nE\n", `"probe" x`, `/usr/bin/pro"be"`, "coproc probe", "while probe; do :; done",
		"# " + strings.Repeat("((-", 1_001) + "\n true > x; probe y", "echo $((a); (b)); probe x", "! (a) && !(probe x)", "print ${(f)x}\necho x|probe", "true # C:\\\n(probe)", strings.Repeat("( ", 20_000) + "probe",
	} {
		rig.Is(t, p.Start([]string{"bash", "-lc", text}, find).Decision, rule.Forbidden, "%q", text)
	}
	rig.Is(t, p.Start([]string{"bash", "-lc", `"$X" probe; echo "$(echo probe)"`}, find).Decision, rule.Allow, "arguments")
	rig.Is(t, p.Start([]string{"bash", "-lc", "rm !(x); let a=1+; prober"}, find).Decision, rule.Allow, "other words behind an error")
}

// TestHostExecutable: a program at another path than the defined one is allowed by no rule that
// names it, and is still forbidden by one.
func TestHostExecutable(t *testing.T) {
	t.Parallel()
	rules := rulesOf("allow git", "forbidden git push")
	rules.DefineHost("git", []string{"/opt/git"})
	p := &Policy{Rules: rules, Unmatched: rule.Prompt}
	for line, want := range map[string]rule.Decision{
		"git status": rule.Prompt, "git push": rule.Forbidden, "/opt/git status": rule.Allow, "/opt/git push": rule.Forbidden,
		"/x/git status": rule.Prompt, "/x/git push": rule.Forbidden,
	} {
		argv := strings.Fields(line)
		rig.Is(t, p.Start(argv, find).Decision, want, "%s", line)
		argv[0] = find(argv[0])
		rig.Is(t, p.Exec(Command{Argv: argv, Path: argv[0]}).Decision, want, "exec of %s", line)
	}
}

// TestUnsure: a rule about a path allows no program that the commands before it may have put elsewhere.
func TestUnsure(t *testing.T) {
	t.Parallel()
	rules := rulesOf("allow git", "allow own", "allow cd", "allow set", "allow /usr/bin/x", "forbidden /dir/no")
	rules.DefineHost("git", []string{"/usr/bin/git"})
	p := &Policy{Rules: rules, Unmatched: rule.Prompt}
	for text, want := range map[string]rule.Decision{
		"/usr/bin/x": rule.Allow, "cd /usr && bin/x": rule.Allow, "cd /usr; bin/git": rule.Allow, "git; x": rule.Allow, "./own; a/../own": rule.Allow, "cd -; ./own": rule.Allow,
		"usr/bin/x": rule.Prompt, "/a/../usr/bin/x": rule.Prompt, "a/../../usr/bin/git": rule.Prompt, "cd /usr/lib && ../bin/git": rule.Prompt, "cd /usr/lib/.. && bin/git": rule.Prompt,
		"set -P; cd /usr; bin/x": rule.Allow, "cd /; set x; usr/bin/x": rule.Prompt, "cd -; usr/bin/x": rule.Prompt, "cd -; /usr/bin/x": rule.Allow, "./no": rule.Forbidden, "cd a; x/../no": rule.Forbidden,
		"x/../no": rule.Forbidden,
	} {
		rig.Is(t, p.Start([]string{"bash", "-c", text}, find).Decision, want, "%s", text)
	}
	for word, want := range map[string]rule.Decision{"/usr/bin/x": rule.Allow, "/a/../usr/bin/x": rule.Prompt, "usr/bin/x": rule.Prompt, "usr/bin/own": rule.Allow, "usr/bin/git": rule.Prompt} {
		rig.Is(t, p.Start([]string{word}, nil).Decision, want, "%s, which nothing finds", word)
	}
}

// TestExec: each candidate is judged, and a script of a shell is one word.
func TestExec(t *testing.T) {
	t.Parallel()
	p := &Policy{Rules: rulesOf("allow vi", "forbidden vim.basic -s", "allow sh -c"), Unmatched: rule.Prompt, ForcedRm: rule.Forbidden}
	program := func(words ...string) Command { return Command{Argv: words, Path: words[0]} }
	behind := func(words ...string) Command { return Command{Argv: words, Path: words[0], Covered: true} }
	for _, tt := range []struct {
		candidates []Command
		want       rule.Decision
	}{
		{[]Command{program("/usr/bin/vi")}, rule.Allow},
		{[]Command{program("/usr/bin/vi"), program("/usr/bin/vim.basic")}, rule.Prompt},
		{[]Command{program("/usr/bin/vi", "-s"), program("/usr/bin/vim.basic", "-s")}, rule.Forbidden},
		{[]Command{program("/usr/bin/vi"), behind("/usr/bin/vim.basic")}, rule.Allow},
		{[]Command{program("/usr/bin/vi"), {Argv: []string{"/memfd:x"}, Path: "/memfd:x", Covered: true, Nameless: true}}, rule.Prompt},
		{[]Command{program("/usr/bin/vi"), behind("/usr/bin/rm", "-f")}, rule.Forbidden},
		{[]Command{program("/bin/x"), behind("/usr/bin/vi")}, rule.Prompt},
		{[]Command{program("/usr/bin/vi", "-s"), behind("/usr/bin/vim.basic", "-s")}, rule.Forbidden},
		{[]Command{program("/bin/sh", "-c", "vim.basic -s")}, rule.Allow},
		{nil, rule.Allow},
	} {
		rig.Is(t, p.Exec(tt.candidates...).Decision, tt.want, "%v", tt.candidates)
	}
}

// TestFirst: of the command itself, rules count that are about the files behind it, and nothing is asked
// that was asked about its words.
func TestFirst(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]rule.Decision{
		"prompt sh": rule.Allow, "prompt dash": rule.Prompt, "forbidden dash": rule.Forbidden, "forbidden sh": rule.Forbidden, "prompt ls": rule.Allow,
	} {
		p := &Policy{Rules: rulesOf(line), Unmatched: rule.Forbidden, ForcedRm: rule.Forbidden}
		script := []string{"-c", "rm -f x"}
		v := p.First(Command{Argv: append([]string{"/bin/sh"}, script...), Path: "/bin/sh"}, Command{Argv: append([]string{"/bin/dash"}, script...), Path: "/bin/dash", Covered: true})
		rig.Is(t, v.Decision, want, "%s", line)
	}
	deep := (&Policy{Rules: rulesOf("prompt ask", "allow ok")}).Start([]string{"sh", "-c", strings.Repeat("( ", 2_000) + "ok" + strings.Repeat(")", 2_000)}, find)
	rig.Is(t, deep.Decision == rule.Prompt && deep.Proposed() == nil, true, "what cannot be read is asked about, and no rule is proposed")
}

// TestWith: a client tightens, and loosens nothing.
func TestWith(t *testing.T) {
	t.Parallel()
	operator := &Policy{Rules: rulesOf("forbidden x", "prompt y", "allow z"), Enforce: InTree}
	both := operator.With(&Policy{Rules: rulesOf("allow x", "allow y", "forbidden z w a"), Unmatched: rule.Prompt})
	for line, want := range map[string]rule.Decision{"x": rule.Forbidden, "y": rule.Prompt, "z": rule.Prompt, "z w a": rule.Forbidden, "q": rule.Prompt} {
		rig.Is(t, both.Start(strings.Fields(line), nil).Decision, want, "%s", line)
	}
	rig.Is(t, fmt.Sprint(both.Words(), operator.Words(), both.Enforce), fmt.Sprint(3, 1, InTree), "words of both, of one, enforcement")
	rig.Is(t, operator.Start([]string{"q"}, nil).Decision, rule.Allow, "the operator's own")
}

// TestReason: of several rules that decide the same, the longest says why, and of those the last.
func TestReason(t *testing.T) {
	t.Parallel()
	rules := &rule.Set{}
	for _, r := range []rule.Rule{
		{Pattern: [][]string{{"a"}}, Decision: rule.Forbidden, Justification: "short"},
		{Pattern: [][]string{{"a"}, {"b"}}, Decision: rule.Forbidden, Justification: "first"},
		{Pattern: [][]string{{"a"}, {"b"}}, Decision: rule.Forbidden, Justification: "last"},
		{Pattern: [][]string{{"a"}, {"b"}, {"c"}}, Decision: rule.Prompt, Justification: "milder"},
	} {
		rules.Add(&r)
	}
	v := (&Policy{Rules: rules}).Start([]string{"a", "b", "c"}, nil)
	rig.Is(t, v.Reason(), "`a b c` rejected: last", "the result")
	long := (&Policy{Unmatched: rule.Prompt}).Start([]string{strings.Repeat("é", 1000)}, nil).Reason()
	rig.Is(t, len(long) <= maxShown+100 && strings.Contains(long, "…` requires approval"), true, "%q is cut", long)
}

// TestProposed: a rule is proposed for the command that is asked about, if no rule asks.
func TestProposed(t *testing.T) {
	t.Parallel()
	p := &Policy{Rules: rulesOf("allow ok", "prompt ask"), Unmatched: rule.Prompt, Opaque: rule.Prompt}
	for text, want := range map[string][]string{
		"ok && x y | z": {"x", "y"}, "ok": nil, "x; ask": nil, "(x)": {"bash", "-lc", "(x)"},
	} {
		rig.Same(t, text, want, p.Start([]string{"bash", "-lc", text}, find).Proposed())
	}
}

// TestManyFindings: what a verdict keeps is bounded, and the decision and its reason are those of
// all.
func TestManyFindings(t *testing.T) {
	t.Parallel()
	rules := &rule.Set{}
	for range 2 * maxFindings {
		rules.Add(&rule.Rule{Pattern: [][]string{{"x"}}})
	}
	rules.Append(rulesOf("forbidden y z", "prompt y"))
	v := (&Policy{Rules: rules, Unmatched: rule.Prompt}).Start([]string{"sh", "-c", "x; x; q; y z"}, find)
	if len(v.Findings) != maxFindings || v.Decision != rule.Forbidden || v.Proposed() != nil ||
		v.Reason() != "`sh -c 'x; x; q; y z'` rejected: policy forbids commands starting with `y z`" {
		t.Errorf("got %d findings, %v, %q, %q", len(v.Findings), v.Decision, v.Reason(), v.Proposed())
	}
}

// TestFindingJSON: findings have the form of the reference.
func TestFindingJSON(t *testing.T) {
	t.Parallel()
	p := &Policy{Rules: rulesOf("allow ok"), Unmatched: rule.Prompt}
	got, err := json.Marshal(p.Start([]string{"bash", "-lc", "ok a; x"}, find).Findings)
	want := `[{"prefixRuleMatch":{"matchedPrefix":["ok"],"decision":"allow","resolvedProgram":"/usr/bin/ok"}},{"heuristicsRuleMatch":{"command":["x"],"decision":"prompt"}}]`
	rig.Must(t, err)
	rig.Is(t, string(got), want, "findings")
}

// TestMonotony: another rule never makes a decision milder, unless it allows a path exactly, and so
// hides what is said about the name.
func TestMonotony(t *testing.T) {
	t.Parallel()
	word := rapid.SampledFrom([]string{"a", "b", "probe", "rm", "-f", "bash"})
	line := rapid.Custom(func(t *rapid.T) string {
		d := rapid.SampledFrom([]string{"prompt", "forbidden"}).Draw(t, "decision")
		return d + " " + strings.Join(rapid.SliceOfN(word, 1, 3).Draw(t, "pattern"), " ")
	})
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(line, 0, 4).Draw(t, "rules")
		argv := rapid.SliceOfN(word, 1, 4).Draw(t, "argv")
		if rapid.Bool().Draw(t, "script") {
			argv = []string{"bash", "-c", strings.Join(argv, rapid.SampledFrom([]string{" ", "; ", " | ", " > "}).Draw(t, "join"))}
		}
		decision := rapid.SampledFrom([]rule.Decision{rule.Allow, rule.Prompt, rule.Forbidden})
		p := Policy{Rules: rulesOf(lines...), Unmatched: rule.Allow, Opaque: rule.Allow, ForcedRm: rule.Allow}
		before := p.Start(argv, find).Decision
		p.Rules.Append(rulesOf(line.Draw(t, "another")))
		client := &Policy{Rules: rulesOf("allow a", "allow b"), Unmatched: decision.Draw(t, "unmatched"), Opaque: decision.Draw(t, "opaque")}
		after, with := p.Start(argv, find).Decision, p.With(client).Start(argv, find).Decision
		rig.Is(t, after < before || with < before, false, "%v became %v, and by a client %v", before, after, with)
	})
}

// BenchmarkDecision is one execve decided by a thousand rules, of which some are about the program
// and some heed no case.
func BenchmarkDecision(b *testing.B) {
	rules := &rule.Set{}
	for i := range 1_000 {
		r := &rule.Rule{Pattern: [][]string{{fmt.Sprint("program", i%900)}, {"x", "y"}, {fmt.Sprint(i)}}, Decision: rule.Prompt}
		if i%10 == 0 {
			r.Caseless()
		}
		rules.Add(r)
	}
	p := (&Policy{Rules: rules, Unmatched: rule.Allow, ForcedRm: rule.Prompt}).With(&Policy{Rules: rules})
	argv := []string{"/usr/bin/program50", "y", "50", "and", "some", "more"}
	b.Run("exec", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if p.Exec(Command{Argv: argv, Path: argv[0]}).Decision != rule.Prompt {
				b.Fatal("not decided by a rule")
			}
		}
	})
	script := []string{"/bin/bash", "-lc", "program1 x 1 && ls | wc -l"}
	b.Run("script", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Start(script, find)
		}
	})
}
