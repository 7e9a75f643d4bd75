package execpolicy

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/execpolicy/script"
)

// Enforce says for which commands a policy is asked.
type Enforce uint8

const (
	// AtStart: when a client starts a process, but not for programs that the process executes.
	AtStart Enforce = iota
	// InTree: also for each program that the process and its descendants execute.
	InTree
)

// ParseEnforce parses the name of an Enforce: start or tree.
func ParseEnforce(name string) (Enforce, error) {
	switch name {
	case "start":
		return AtStart, nil
	case "tree":
		return InTree, nil
	}
	return InTree, fmt.Errorf("enforce is %q; it can be start or tree", name)
}

func (e Enforce) String() string {
	if e == InTree {
		return "tree"
	}
	return "start"
}

// A Policy says which commands may run. It must not be changed while it is in use; any number of
// goroutines may use it. The zero Policy allows everything.
type Policy struct {
	Rules *rule.Set // nil: no rules
	// Unmatched is the decision about a command that no rule matches.
	Unmatched rule.Decision
	// Opaque is the decision about a shell whose script cannot be split into plain commands, if no
	// rule matches the shell.
	Opaque rule.Decision
	// ForcedRm is the decision about rm with -f or --force, if no rule matches it. It counts only if
	// it is stricter than Unmatched or Opaque.
	ForcedRm rule.Decision
	// AllowUnasked lets a command with the decision prompt run if there is nobody to ask.
	AllowUnasked bool
	Enforce      Enforce

	client *Policy // additional policy of a client; nil if there is none
}

// With returns the policy with the additional policy of a client. The stricter decision of both
// holds. Enforce is taken from p.
func (p *Policy) With(client *Policy) *Policy {
	both := *p
	both.client = client
	return &both
}

// Client returns the additional policy of the client, or nil if there is none.
func (p *Policy) Client() *Policy { return p.client }

// layers calls f with p and then with the policies of clients on it.
func (p *Policy) layers(f func(*Policy)) {
	for ; p != nil; p = p.client {
		f(p)
	}
}

// Words returns the number of words of a command that must be known before a decision, because no
// rule compares more. Of rm, sudo, env, multi-call programs and shells, all words must be known.
func (p *Policy) Words() (n int) {
	p.layers(func(p *Policy) {
		if p.Rules != nil {
			n = max(n, p.Rules.LongestPattern())
		}
	})
	return n
}

// A Command is a command that is about to be executed.
type Command struct {
	Argv []string
	// Path is the absolute path of the program; "" if the path is unknown, for instance for a word in
	// a script.
	Path string
	// Unsure says that the program may be found at another path than Path. Then no rule can allow the
	// command because of a path. One that names the program without any path still can.
	Unsure bool
	// Nameless says that the name of the program means nothing, as for a deleted file. Then no rule
	// can allow the command.
	Nameless bool
	// As says what the command is of an execve, and Covered that what is decided about the program as it
	// is called covers it: it needs no rule of its own. See [Candidates].
	As      Part
	Covered bool
}

// A Part says what a command is of an execve.
type Part string

// The parts of an execve.
const (
	Called      Part = ""            // the program as it is called
	Link        Part = "link"        // the file behind a link
	Interpreter Part = "interpreter" // of a script (#!)
	Loader      Part = "loader"      // a file in whose place the kernel begins (PT_INTERP)
	Tool        Part = "tool"        // of a multi-call program
	Loaded      Part = "loaded"      // what a loader is told to load
	Written     Part = "written"     // the path as the call has it, which does not lead to the program
)

// Start decides about a command that a client wants to start. If it is a shell with a script, the
// commands of the script are judged. find resolves the name or path of a program in the environment
// of the process. It returns the absolute path, or "" if there is none. find may be nil.
func (p *Policy) Start(argv []string, find func(program string) string) Verdict {
	v := Verdict{Argv: argv}
	paths := map[string]string{}
	named := func(argv []string, name string) Command {
		if find == nil {
			return Command{Argv: argv}
		}
		path, known := paths[name]
		if !known && len(paths) < script.MaxCommands {
			path = find(name)
			paths[name] = path
		}
		return Command{Argv: argv, Path: path}
	}
	program := func(argv []string) Command {
		if len(argv) == 0 {
			return Command{}
		}
		return named(argv, argv[0])
	}
	// within is program for a command of a script in a folder. What comes before it in the script may
	// have changed where a link leads.
	within := func(argv []string, folder string) Command {
		name := argv[0]
		switch {
		case !strings.Contains(name, "/"):
			return program(argv)
		case !path.IsAbs(name) && folder != "" && !strings.Contains(folder, ".."):
			name = folder + "/" + name
		case !path.IsAbs(name):
			name = ""
		}
		if !rule.Certain(name, "/") || name == "" {
			c := program(argv)
			c.Unsure = true
			return c
		}
		return named(argv, name)
	}
	text, isScript := script.Of(argv)
	var folders []string
	if isScript {
		if v.Commands, v.Plain = script.Split(text); v.Plain {
			folders = script.Folders(text, ".")
		}
	}
	var literal []script.Command
	readable := true
	if !v.Plain {
		v.Commands = [][]string{argv}
		if isScript {
			literal, readable = script.Literal(text)
		}
	}
	shell := program(argv)
	p.layers(func(p *Policy) {
		if !isScript {
			v.add(p.judge(shell, p.Unmatched))
			return
		}
		// This is stricter than the reference. If the reference can split the script, it does not judge
		// the shell. If it cannot, it does not apply rules to the script's commands.
		if v.Plain {
			v.add(restrictive(p.matches(shell)))
			for i, command := range v.Commands {
				v.add(p.judge(within(command, folders[i]), p.Unmatched))
			}
			return
		}
		found := p.judge(shell, p.Opaque)
		found[0].opaque = true
		v.add(found)
		if d := p.Rules.Strictest(); !readable && d > rule.Allow {
			// Each rule may be about a command in it.
			v.add([]Finding{{Command: argv, Decision: d, unreadable: true}})
		}
		for _, command := range literal {
			v.add(restrictive(p.matches(program(command.Prefix()))))
		}
	})
	return v
}

// Exec decides about a program that a process is about to execute. The candidates are all commands
// that the execve may mean (see [Candidates]). Each is judged, and the strictest decision holds.
// Those that are Covered need no rule, but rules about them count.
//
// Scripts of shells are not split, because Exec is asked about their commands too.
func (p *Policy) Exec(candidates ...Command) (v Verdict) {
	p.exec(candidates, func(_ int, found []Finding) { v.add(found) })
	return v.about(candidates)
}

// exec calls add with the findings about each candidate, for each layer.
func (p *Policy) exec(candidates []Command, add func(i int, found []Finding)) {
	p.layers(func(p *Policy) {
		for i, c := range candidates {
			otherwise := p.Unmatched
			if c.Covered && !c.Nameless {
				otherwise = rule.Allow // what no rule allows is refused as it is called
			}
			found := p.judge(c, otherwise)
			if f := &found[0]; f.ForcedRm && c.Covered && path.Base(c.Argv[0]) == path.Base(candidates[0].Argv[0]) {
				f.Decision, f.ForcedRm = otherwise, false // this rm was judged as it is called
			}
			add(i, found)
		}
	})
}

// First decides about the command itself, when it is executed after [Policy.Start] has decided about
// its words. The rules that prompt or forbid count that Start could not apply, because they are about
// the files behind.
func (p *Policy) First(candidates ...Command) (v Verdict) {
	p.first(candidates, func(_ int, found []Finding) { v.add(found) })
	return v.about(candidates)
}

// first is exec for First.
func (p *Policy) first(candidates []Command, add func(i int, found []Finding)) {
	p.layers(func(p *Policy) {
		var asked []Finding
		for i, c := range candidates {
			found := restrictive(p.matches(c))
			if i == 0 {
				asked = found
			}
			add(i, slices.DeleteFunc(slices.Clone(found), func(f Finding) bool {
				return f.Decision == rule.Prompt && slices.ContainsFunc(asked, func(a Finding) bool { return a.Match.Rule == f.Match.Rule })
			}))
		}
	})
}

// Chain returns what Exec, or First, decides about each candidate.
func (p *Policy) Chain(first bool, candidates ...Command) []Verdict {
	each := make([]Verdict, len(candidates))
	decide := p.exec
	if first {
		decide = p.first
	}
	decide(candidates, func(i int, found []Finding) { each[i].add(found) })
	for i := range candidates {
		each[i] = each[i].about(candidates[i:])
	}
	return each
}

// about returns the verdict with the commands that it is about.
func (v Verdict) about(candidates []Command) Verdict {
	for _, c := range candidates {
		v.Commands = append(v.Commands, c.Argv)
	}
	if len(candidates) > 0 {
		v.Argv = candidates[0].Argv
	}
	return v
}

// judge returns the findings of this layer of the policy about one command.
func (p *Policy) judge(c Command, otherwise rule.Decision) []Finding {
	matches := p.matches(c)
	if c.Nameless {
		matches = slices.DeleteFunc(matches, func(m rule.Match) bool { return m.Decision == rule.Allow })
	}
	if len(matches) > 0 {
		return findings(matches)
	}
	f := Finding{Command: c.Argv, Decision: otherwise, nameless: c.Nameless}
	if otherwise == rule.Forbidden && p.Rules != nil && c.Path != "" {
		f.elsewhere = !p.Rules.Named(c.Path) || c.Unsure && !p.Rules.Named(c.Argv[0])
	}
	if p.ForcedRm > otherwise && script.ForcedRm(c.Argv) {
		f.Decision, f.ForcedRm = p.ForcedRm, true
	}
	return []Finding{f}
}

// matches returns the rules that match one command.
//
// A rule matches the program as the command spells it, or its path. If no rule matches these, a
// rule matches the last element of the path. Two things are stricter than in the reference. First,
// a rule that prompts or forbids and names the program counts at every path, whatever
// host_executable says. Second, a program that is given by its name is allowed only by a rule that
// allows its path.
func (p *Policy) matches(c Command) []rule.Match {
	if p.Rules == nil || len(c.Argv) == 0 {
		return nil
	}
	spelled := p.Rules.Match(c.Argv)
	isPath := strings.Contains(c.Argv[0], "/")
	switch {
	case c.Path == "" && !isPath, isPath && len(spelled) > 0:
		return spelled
	case c.Path == "":
		c.Path, c.Unsure = rule.Absolute(c.Argv[0], "/", ""), !path.IsAbs(c.Argv[0]) || !rule.Certain(c.Argv[0], "/")
	}
	argv := c.Argv
	if argv[0] != c.Path {
		argv = slices.Concat([]string{c.Path}, argv[1:])
	}
	byPath := p.Rules.MatchProgram(argv, func(path string) string { return path })
	if len(byPath) == 0 || byPath[0].Program != "" { // no rule matches the path itself
		byPath = union(byPath, p.Rules.Restrictive(argv, c.Path))
	}
	if c.Unsure {
		byPath = slices.DeleteFunc(byPath, func(m rule.Match) bool { return m.Decision == rule.Allow })
		return union(byPath, p.Rules.MatchProgram(c.Argv, func(written string) string { return written })) // which no definition has
	}
	if !isPath {
		spelled = slices.DeleteFunc(spelled, func(m rule.Match) bool { return m.Decision == rule.Allow })
		return union(spelled, byPath)
	}
	return byPath
}

// union appends the matches of other whose rules are not yet in list.
func union(list, other []rule.Match) []rule.Match {
	for _, m := range other {
		if !slices.ContainsFunc(list, func(n rule.Match) bool { return n.Rule == m.Rule }) {
			list = append(list, m)
		}
	}
	return list
}

// restrictive returns the findings of the matches that prompt or forbid.
func restrictive(matches []rule.Match) []Finding {
	return findings(slices.DeleteFunc(matches, func(m rule.Match) bool { return m.Decision == rule.Allow }))
}

func findings(matches []rule.Match) []Finding {
	list := make([]Finding, len(matches))
	for i, m := range matches {
		list[i] = Finding{Match: m, Decision: m.Decision}
	}
	return list
}

// compareReasons compares two findings with the same decision, and returns a positive number if a
// is the better reason. A rule is better than no rule, and a longer rule better than a shorter one.
// Of equal findings the caller takes the later.
func compareReasons(a, b *Finding) int {
	if a.Match.Rule == nil || b.Match.Rule == nil {
		return cmp.Compare(btoi(a.Match.Rule != nil), btoi(b.Match.Rule != nil))
	}
	return cmp.Compare(len(a.Match.Prefix), len(b.Match.Prefix))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
