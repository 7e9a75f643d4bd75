package refusals

import (
	"fmt"
	"slices"
	"strings"

	"github.com/execagent/execagent/sandbox"
)

// Asker returns what to ask for, so that an attempt succeeds.
type Asker func(need Need, at string) string

// Words are for who has no command line: a model.
func Words(need Need, at string) string {
	switch need {
	case ToRead:
		return "ask for read access to " + word(at)
	case ToWrite:
		return "ask for write access to " + word(at)
	case ToReach:
		return "ask for the host " + at
	case ToRequest:
		return "ask for the request " + at
	case ToReachLocal:
		return "ask for local addresses"
	case ToConnect:
		return "ask for the socket " + word(at)
	}
	return ""
}

// Flags are for agent sandbox and agent exec.
func Flags(need Need, at string) string {
	switch need {
	case ToRead:
		return "add --readable " + word(at)
	case ToWrite:
		return "add --workspace " + word(at)
	case ToReach, ToRequest:
		return "add --network " + word("allow="+strings.ReplaceAll(at, ",", "%2C"))
	case ToReachLocal:
		return "add --network local"
	case ToConnect:
		return "add --socket " + word(at)
	}
	return ""
}

// word quotes a word for a shell, if that is necessary.
func word(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-=:@+,") == "" && s != "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Line returns the refusal in one line.
func (r *Refusal) Line(ask Asker) string { return r.line(0, ask) }

// line returns a line that also stands for like refusals with the same reason and remedy.
func (r *Refusal) line(like int, ask Asker) string {
	subject := r.Subject
	if strings.HasPrefix(subject, "/") || strings.HasPrefix(subject, "./") {
		subject = word(subject) // a command chooses its paths, and a path may look like the rest of a line
	}
	text := fmt.Sprintf("refused: %s %s", r.Operation, subject)
	if r.Times > 1 {
		text += fmt.Sprintf(" (%d times)", r.Times)
	}
	if like > 0 {
		text += fmt.Sprintf(" and %d more there", like)
	}
	text += ": " + r.Reason
	if what := ask(r.Need, r.At); what != "" {
		text += "; " + what
	}
	return text
}

// maxLines is how many refusals are told in lines, and maxBeside how many of a command that did not fail:
// most programs try things that they can do without.
const (
	maxLines  = 8
	maxBeside = 1
)

// Lines returns lines about refusals, of which more were not kept. Writes that one folder would allow have one
// line, because a program that cleans up may try hundreds. failed says that the command has failed.
func Lines(all []Refusal, more int, failed bool, ask Asker) (lines []string) {
	limit := maxLines
	if !failed {
		limit = maxBeside
	}
	var first []*Refusal // of those with one reason and remedy
	var like []int       // how often there were others
	for i := range all {
		r := &all[i]
		switch at := slices.IndexFunc(first, r.isLike); {
		case at >= 0:
			like[at] += r.Times
		case len(first) < limit:
			first, like = append(first, r), append(like, 0)
		default:
			more += r.Times
		}
	}
	for i, r := range first {
		lines = append(lines, r.line(like[i], ask))
	}
	if len(lines) == 0 {
		return nil
	}
	last := &lines[len(lines)-1]
	if more > 0 {
		*last += fmt.Sprintf(" (and %d more)", more)
	}
	if !failed {
		*last += "; the command did not fail"
	}
	return lines
}

// isLike reports whether both are writes that one folder to ask for would let succeed.
func (r *Refusal) isLike(other *Refusal) bool {
	return r.Need == ToWrite && r.Layer == other.Layer && r.Need == other.Need && r.At == other.At && r.Reason == other.Reason
}

// maxNamed is how many paths a line names.
const maxNamed = 4

// Limits says what a policy does not let a command do, for a command that has failed with an exit code
// where nobody knows what was refused. It does not say that something was. "" if the policy restricts no
// files, if the command did not run, or if a signal has ended it.
func Limits(p *sandbox.Policy, code int, ask Asker) string {
	const sandboxFailed, notExecuted, notFound, signalled = 101, 126, 127, 128
	full := p.Access("/") >= sandbox.Read
	switch {
	case !p.Confined || p.WritesEverything(), code <= 0 || code == sandboxFailed || code > signalled, full && (code == notExecuted || code == notFound):
		return ""
	}
	var facts, remedies []string
	if p.Network == sandbox.NetworkRestricted {
		facts, remedies = append(facts, "has no network"), append(remedies, ask(ToReach, "HOST"))
	}
	facts, remedies = append(facts, writable(p)), append(remedies, ask(ToWrite, "DIR"))
	denied := len(p.Globs)
	for _, r := range p.Rules {
		if r.Access == sandbox.Denied && r.Origin == sandbox.Asked {
			denied++
		}
	}
	switch {
	case !full:
		facts, remedies = append(facts, "sees only what the sandbox names"), append(remedies, ask(ToRead, "PATH"))
	case denied > 0:
		facts, remedies = append(facts, fmt.Sprintf("cannot read %d paths or patterns", denied)), append(remedies, ask(ToRead, "PATH"))
	}
	for i := range remedies[1:] { // the verb comes once
		remedies[1+i] = strings.TrimPrefix(strings.TrimPrefix(remedies[1+i], "add "), "ask for ")
	}
	return fmt.Sprintf("exit code %d. If the sandbox is the cause: the command %s; %s", code, series(facts, "and"), series(remedies, "or"))
}

// Untold says of a command that has failed without a network what even a supervisor does not see: a filter
// refuses all its sockets. So nobody takes the lines about files for all that was refused.
func Untold(p *sandbox.Policy, code int, ask Asker) string {
	if code <= 0 || code > 128 || p.Network != sandbox.NetworkRestricted {
		return ""
	}
	return "the command has no network, and attempts to use one are not told; " + ask(ToReach, "HOST")
}

// writable says what a command can change.
func writable(p *sandbox.Policy) string {
	roots := p.WritableRoots()
	if len(roots) == 0 {
		return "can change no files"
	}
	for i, root := range roots {
		roots[i] = Text(root, maxSubject)
	}
	text := "can change files only in " + strings.Join(roots[:min(len(roots), maxNamed)], ", ")
	if more := len(roots) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if held := names(p); held != "" {
		text += " (but not " + held + " there)"
	}
	return text
}

// series joins texts as English does.
func series(texts []string, word string) string {
	last := len(texts) - 1
	if last == 0 {
		return texts[0]
	}
	return strings.Join(texts[:last], ", ") + " " + word + " " + texts[last]
}

// names returns the last names of protected paths, each once.
func names(p *sandbox.Policy) string {
	var all []string
	for _, r := range p.Rules {
		if r.Origin == sandbox.Protected || r.Origin == sandbox.GitDir {
			all = append(all, r.Path[strings.LastIndexByte(r.Path, '/')+1:])
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > maxNamed {
		more := len(all) - maxNamed
		all = all[:maxNamed]
		all[maxNamed-1] += fmt.Sprintf(" and %d more", more)
	}
	return Text(strings.Join(all, ", "), maxSubject)
}

// OfFile returns the refusal of what a command does with the file at a canonical path, and which rule of
// the policy is the reason.
func OfFile(p *sandbox.Policy, op Operation, path string) Refusal {
	r := Refusal{Layer: File, Operation: op, Subject: path, Need: ToWrite, At: parent(path)}
	if op == Read || op == Execute {
		r.Need, r.At = ToRead, path
	}
	rule, ok := ruleOf(p, path)
	switch {
	case !ok || rule.Access == sandbox.Hidden:
		r.Reason = "the sandbox does not show this path"
	case rule.Origin == sandbox.Private:
		r.Reason, r.Need, r.At = "it belongs to the agent itself", Nothing, ""
	case rule.Access == sandbox.Denied:
		r.Reason = "the sandbox denies " + rule.Path
	case p.DeniesFile(path):
		r.Reason = "a pattern of the sandbox denies it"
	case op == Read || op == Execute:
		r.Reason, r.Need, r.At = "the sandbox does not allow it", Nothing, ""
	case rule.Origin == sandbox.Protected || rule.Origin == sandbox.GitDir:
		r.Reason, r.At = rule.Path+" is protected, because programs outside of the sandbox trust it", rule.Path
	case under(path, "/proc") || under(path, "/sys"):
		r.Reason, r.Need, r.At = "settings of the kernel cannot be changed", Nothing, ""
	case rule.Access == sandbox.Read:
		r.Reason = "the sandbox only lets " + rule.Path + " be read"
	default:
		r.Reason, r.Need, r.At = "a rule of the sandbox is about this path, or about something below it", Nothing, ""
	}
	if r.Need == ToWrite && r.At == "/" {
		r.Need, r.At = Nothing, "" // nobody should ask for everything
	}
	return r
}

// ruleOf returns the rule that decides about a path.
func ruleOf(p *sandbox.Policy, path string) (sandbox.Rule, bool) {
	for prefix := path; strings.HasPrefix(prefix, "/"); prefix = parent(prefix) {
		i, ok := slices.BinarySearchFunc(p.Rules, prefix, func(r sandbox.Rule, path string) int { return strings.Compare(r.Path, path) })
		if ok {
			return p.Rules[i], true
		}
		if prefix == "/" {
			break
		}
	}
	return sandbox.Rule{}, false
}

// parent returns the directory above a clean path.
func parent(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// UnderCeiling says what the operator's ceiling has to do with refusals of files: it is the layer that has
// refused what the policy asked for, and no other policy helps where the ceiling allows no more. The paths of
// both may lead through links, so some are not recognised.
func UnderCeiling(all []Refusal, asked, ceiling *sandbox.Policy) {
	for i := range all {
		r := &all[i]
		wants := sandbox.Write
		if r.Operation == Read || r.Operation == Execute {
			wants = sandbox.Read
		}
		allows := func(p *sandbox.Policy) bool { return p.Access(r.Subject) >= wants && !p.DeniesFile(r.Subject) }
		switch {
		case r.Layer != File || allows(ceiling):
			continue
		case allows(asked):
			r.Layer, r.Reason = Ceiling, "the operator's ceiling (--sandbox-ceiling) is lower than what the sandbox asks for"
		default:
			r.Reason += ", and the operator's ceiling (--sandbox-ceiling) allows no more"
		}
		r.Need, r.At = Nothing, ""
	}
}
