package scenario

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// with are the arguments of a verb. Reading one takes it away, so what is left when the verb is done is unknown.
type with struct {
	values map[string]any
	err    error // an argument that cannot be read, or that the client lacks
}

// take returns an argument and takes it away.
func take[T any](w *with, name string) (v T, ok bool) {
	given, ok := w.values[name]
	if !ok {
		return v, false
	}
	delete(w.values, name)
	if v, ok = given.(T); !ok {
		w.fail(fmt.Errorf("%w: %s as %s", ErrUnknown, name, show(given)))
	}
	return v, ok
}

// fail notes an error. What is unknown counts more than what the client lacks, because that skips the scenario.
func (w *with) fail(err error) {
	if w.err == nil || errors.Is(err, ErrUnknown) {
		w.err = err
	}
}

// lacks takes an argument away that the Go client cannot have.
func (w *with) lacks(name string) {
	if v, ok := take[any](w, name); ok {
		w.fail(fmt.Errorf("%w: the Go client does not take %s %s", ErrLacks, name, show(v)))
	}
}

// end returns the error of the arguments once all are read.
func (w *with) end() error {
	if len(w.values) > 0 {
		return fmt.Errorf("%w: the arguments %q", ErrUnknown, slices.Sorted(maps.Keys(w.values)))
	}
	return w.err
}

func (w *with) text(name string) string {
	v, _ := take[string](w, name)
	return v
}

func (w *with) number(name string) int { return int(value(w, name, 0.0)) }

// flag is a boolean with a default.
func (w *with) flag(name string, absent bool) bool { return value(w, name, absent) }

// value is an argument with a default.
func value[T any](w *with, name string, absent T) T {
	if v, ok := take[T](w, name); ok {
		return v
	}
	return absent
}

// count is a number; nil: it was not given.
func (w *with) count(name string) *uint64 {
	if v, ok := take[float64](w, name); ok {
		return new(uint64(v))
	}
	return nil
}

func (w *with) duration(name string) time.Duration {
	return time.Duration(w.number(name)) * time.Millisecond
}

func (w *with) list(name string) (all []string) {
	values, _ := take[[]any](w, name)
	for _, v := range values {
		all = append(all, fmt.Sprint(v))
	}
	return all
}

func (w *with) data(name string) []byte {
	v, ok := take[any](w, name)
	if !ok {
		return nil
	}
	d, err := data(v)
	if err != nil {
		w.fail(fmt.Errorf("%w: %s: %w", ErrUnknown, name, err))
	}
	return d
}

// size is a number of bytes. Go has no words for it: a caller writes 4 << 10 for 4k.
func (w *with) size(name string) uint64 {
	text, ok := w.values[name].(string)
	if !ok {
		return uint64(w.bound(name))
	}
	if kibibytes, ok := strings.CutSuffix(text, "k"); ok {
		if n, err := strconv.ParseUint(kibibytes, 10, 32); err == nil {
			delete(w.values, name)
			return n << 10
		}
	}
	w.lacks(name)
	return 0
}

// bound is a number that bounds a command. Go has 0 for none, so it has no 0 that is refused.
func (w *with) bound(name string) float64 {
	if w.values[name] == float64(0) {
		w.lacks(name)
	}
	return value(w, name, 0.0)
}

// spec is what run, shell and spawn have in common.
func (w *with) spec() client.Spec {
	w.lacks("sandbox")
	s := client.Spec{Argv: w.list("argv"), Dir: w.text("cwd"), Timeout: w.duration("killAfter"), MaxOutput: w.size("maxOutput")}
	env, _ := take[map[string]any](w, "env")
	for name, v := range env {
		s.Env = append(s.Env, fmt.Sprintf("%s=%v", name, v))
	}
	if _, is := w.values["tty"].(bool); !is {
		if size, ok := take[map[string]any](w, "tty"); ok {
			of := with{values: size}
			s.TTY = &client.TTY{Rows: uint16(of.number("rows")), Cols: uint16(of.number("cols"))}
			if err := of.end(); err != nil {
				w.fail(err)
			}
		}
	} else if w.flag("tty", false) {
		s.TTY = &client.TTY{}
	}
	limits := protocol.ProcessLimits{MemoryBytes: w.size("memory"), MilliCPUs: uint64(math.Round(w.bound("cpus") * 1000)), Processes: uint64(w.bound("pids")), FileSizeBytes: w.size("fileSize")}
	if limits != (protocol.ProcessLimits{}) {
		s.Limits = &limits
	}
	if name, _ := w.values["user"].(string); strings.HasSuffix(name, ":") {
		w.lacks("user")
	}
	if name, group, _ := strings.Cut(w.text("user"), ":"); name != "" {
		s.RunAs = &protocol.RunAs{User: name, Group: group}
	}
	return s
}
