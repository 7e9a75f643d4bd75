package programs

import (
	"path"
	"regexp"
	"slices"
)

// An allowance says what may differ between two runs of a program, even unconfined.
type allowance struct {
	program string
	// One of these, with * as in path.Match.
	content string // the path of a file with any content
	tree    string // the path of what may have anything in it, or be missing
	text    string // an expression that fits what may be printed in its place
	why     string
}

var allowances = []allowance{
	{program: "git", content: "repo/.git/index", why: "has the times and inodes of files"},
	{program: "git", content: "copy/.git/index", why: "has the times and inodes of files"},
	{program: "npm", content: "home/.npm/_cacache/index-v5/*/*/*", why: "has the times of entries"},
	{program: "python", content: "packed.tar.gz", why: "has the times of folders"},
	{program: "go", tree: "home/.config/go/telemetry", why: "has counters of times"},
	{program: "go", tree: "home/.cache/go-build", why: "has the times of entries, and which there are depends on them"},
	{program: "keys", content: "key*", why: "keys are random"},
	{program: "keys", content: "other*", why: "keys are random"},
	{program: "keys", content: "allowed", why: "has a public key"},
	{program: "keys", content: "text.sig", why: "has a signature"},
	{program: "keys", content: "home/.ssh/*", why: "keys are random"},
	{program: "terminal", content: "typescript", why: "has the time"},
	{program: "terminal", content: "log", why: "has the time"},
	{program: "procfs", text: `(?m)^\S*(self|PID)/net(/\w+)?: .*$`, why: "a supervisor that judges reads denies the files about a network that the command has not"},
	{program: "vim", content: ".text.un~", why: "has the time of each change"},
}

// What may differ of a file.
const (
	nothing = iota
	anyContent
	anything
)

// of are the allowances of one program.
type allowancesOf []allowance

func allowed(program string) allowancesOf {
	return slices.DeleteFunc(slices.Clone(allowances), func(a allowance) bool { return a.program != program })
}

// printed takes what may differ out of a text.
func (of allowancesOf) printed(text string) string {
	for _, a := range of {
		if a.text != "" {
			text = regexp.MustCompile(a.text).ReplaceAllString(text, "…")
		}
	}
	return text
}

// leaves returns what may differ of a file.
func (of allowancesOf) leaves(file string) int {
	for _, a := range of {
		for above := file; a.tree != "" && above != "."; above = path.Dir(above) {
			if fits, _ := path.Match(a.tree, above); fits {
				return anything
			}
		}
		if fits, _ := path.Match(a.content, file); fits {
			return anyContent
		}
	}
	return nothing
}
