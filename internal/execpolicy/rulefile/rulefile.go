package rulefile

import (
	"errors"
	"fmt"
	"maps"
	"unicode/utf8"

	"go.starlark.net/resolve"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/execpolicy/rulefile/quiet"
)

func init() { quiet.Loud() }

// Bounds limits the files of one policy.
type Bounds struct {
	FileBytes int
	Rules     int
}

const (
	// maxSteps bounds the instructions of the evaluation of one file. A plain rule takes less than
	// ten.
	maxSteps = 50_000
	// maxCalls bounds the depth of calls in a file.
	maxCalls = 49
)

// Error is an error in a file, with its position.
type Error struct {
	File         string
	Line, Column int // counted from 1
	Text         string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// ErrNotText is the error for a file that is not UTF-8.
var ErrNotText = errors.New("stream did not contain valid UTF-8")

// Parse returns the rules of one file. earlier has the rules of earlier files: their definitions of
// programs are used when the examples are checked. Parse does not change earlier. It returns an
// [*Error], or [ErrNotText].
func Parse(earlier *rule.Set, file string, text []byte, bounds Bounds) (*rule.Set, error) {
	if len(text) > bounds.FileBytes {
		return nil, &Error{file, 1, 1, fmt.Sprintf("the file has %d bytes; %d are allowed", len(text), bounds.FileBytes)}
	}
	if !utf8.Valid(text) {
		return nil, ErrNotText
	}
	src, err := source(file, text)
	if err != nil {
		return nil, err
	}
	options := &syntax.FileOptions{TopLevelControl: true, GlobalReassign: true, Recursion: true}
	tree, err := options.Parse(file, src, 0)
	if err != nil {
		return nil, located(file, err)
	}
	m := &meter{left: maxWeight}
	e := &evaluation{file: file, earlier: earlier, rules: &rule.Set{}, maxRules: bounds.Rules - earlier.Len(), meter: m}
	names := starlark.StringDict{
		"prefix_rule":     starlark.NewBuiltin("prefix_rule", e.prefixRule),
		"host_executable": starlark.NewBuiltin("host_executable", e.hostExecutable),
		"network_rule":    starlark.NewBuiltin("network_rule", e.networkRule),
	}
	maps.Copy(names, m.names())
	if err := instrument(tree); err != nil {
		return nil, located(file, err)
	}
	program, err := starlark.FileProgram(tree, names.Has)
	if err != nil {
		return nil, located(file, err)
	}
	if err := unknownNames(tree); err != nil {
		return nil, err
	}
	thread := &starlark.Thread{Name: file, Print: func(*starlark.Thread, string) {}}
	thread.OnMaxSteps = func(thread *starlark.Thread) {
		switch {
		case thread.ExecutionSteps() > maxSteps:
			thread.Cancel(fmt.Sprintf("more than %d steps", maxSteps))
		case thread.CallStackDepth() > maxCalls+1:
			thread.Cancel("call stack overflow")
		}
	}
	thread.SetMaxExecutionSteps(1) // so that OnMaxSteps is called at each step
	if _, err := program.Init(thread, names); err != nil {
		return nil, located(file, err)
	}
	if err := e.tryExamples(); err != nil {
		return nil, err
	}
	return e.rules, nil
}

// constants are the names of the language that a file may use, besides the names of the meter.
var constants = []string{"None", "True", "False"}

// unknownNames returns an error for names that the Starlark library defines and the reference does
// not.
func unknownNames(tree *syntax.File) (err error) {
	syntax.Walk(tree, func(n syntax.Node) bool {
		id, ok := n.(*syntax.Ident)
		if !ok || err != nil {
			return err == nil
		}
		if b, ok := id.Binding.(*resolve.Binding); ok && b.Scope == resolve.Universal && id.Name != constants[0] && id.Name != constants[1] && id.Name != constants[2] {
			err = &Error{tree.Path, int(id.NamePos.Line), int(id.NamePos.Col), "Variable `" + id.Name + "` not found"}
		}
		return true
	})
	return err
}

// located converts an error of the Starlark library to an [*Error].
func located(file string, err error) error {
	at := func(p syntax.Position, text string) error {
		return &Error{file, max(int(p.Line), 1), max(int(p.Col), 1), text}
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[syntax.Error](err); ok {
		return at(e.Pos, e.Msg)
	}
	if e, ok := errors.AsType[resolve.ErrorList](err); ok && len(e) > 0 {
		return at(e[0].Pos, e[0].Msg)
	}
	if e, ok := errors.AsType[*starlark.EvalError](err); ok {
		for i := range len(e.CallStack) {
			if frame := e.CallStack.At(i); frame.Pos.IsValid() && frame.Pos.Filename() == file {
				return at(frame.Pos, e.Msg)
			}
		}
	}
	return &Error{file, 1, 1, err.Error()}
}
