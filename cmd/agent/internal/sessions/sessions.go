// Package sessions finds the named sessions of an agent and their processes: [All], [Named] and [Find]
// return them as [Found]. [Rows] and [JSON] show them, and [Logs] prints their output.
package sessions

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"
	"sync"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// Main is the id of the process that agent exec starts in a session with a name.
const Main = "main"

// CheckName refuses an invalid name of a session.
func CheckName(name string) error {
	if !protocol.ValidSessionName(name) {
		return fmt.Errorf("%.130q is not a valid name for a session: use up to 128 letters, digits and . _ - and begin with a letter or digit", name)
	}
	return nil
}

// Found is a session with its processes, oldest first.
type Found struct {
	protocol.ListedSession
	Processes []protocol.ListedProcess
	Observer  *client.Observer
}

// All returns all sessions with a name, oldest first.
func All(ctx context.Context, c *client.Client) ([]*Found, error) {
	listed, err := c.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	return look(ctx, c, listed)
}

// NoSuch is the error for a name without a session.
func NoSuch(name string) error {
	return fmt.Errorf("there is no session named %s: agent ps lists the sessions", name)
}

// Named returns the session of a name.
func Named(ctx context.Context, c *client.Client, name string) (*Found, error) {
	found, err := Find(ctx, c, name)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, NoSuch(name) // it has just ended
	}
	return found[0], nil
}

// Find returns the sessions of these names, in the same order. It fails if a session does not
// exist.
func Find(ctx context.Context, c *client.Client, names ...string) ([]*Found, error) {
	all, err := c.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	by := map[string]protocol.ListedSession{}
	for _, s := range all {
		by[s.Name] = s
	}
	var listed []protocol.ListedSession
	for _, name := range names {
		s, ok := by[name]
		if !ok {
			return nil, NoSuch(name)
		}
		listed = append(listed, s)
	}
	return look(ctx, c, listed)
}

// lookers is the number of sessions whose processes are listed at once.
const lookers = 16

// look lists the processes of sessions. It leaves out a session that has ended meanwhile.
func look(ctx context.Context, c *client.Client, listed []protocol.ListedSession) ([]*Found, error) {
	found, errs := make([]*Found, len(listed)), make([]error, len(listed))
	slots := make(chan struct{}, lookers)
	var looking sync.WaitGroup
	for i, s := range listed {
		slots <- struct{}{}
		looking.Go(func() {
			defer func() { <-slots }()
			f := &Found{ListedSession: s, Observer: c.Observe(s.SessionID)}
			if f.Processes, errs[i] = f.Observer.Processes(ctx); errs[i] == nil {
				found[i] = f
			}
		})
	}
	looking.Wait()
	var there []*Found
	for i, f := range found {
		switch {
		case f != nil:
			there = append(there, f)
		case !Unknown(errs[i]):
			return nil, errs[i]
		}
	}
	return there, nil
}

// Running returns the processes that have not exited.
func (f *Found) Running() []protocol.ListedProcess {
	var running []protocol.ListedProcess
	for _, p := range f.Processes {
		if !p.Exited {
			running = append(running, p)
		}
	}
	return running
}

// Left returns the processes that have exited, and have left others behind that still run. As in
// [Status], those are the ones that hold the output open.
func (f *Found) Left() []protocol.ListedProcess {
	var left []protocol.ListedProcess
	for _, p := range f.Processes {
		if hasLeft(&p) {
			left = append(left, p)
		}
	}
	return left
}

// hasLeft reports whether a process has exited, and has left others behind that still run.
func hasLeft(p *protocol.ListedProcess) bool { return p.Exited && !p.Closed }

// Process returns the process with an id; with "" the only process of the session.
func (f *Found) Process(id string) (protocol.ListedProcess, error) {
	return pick(f.Name, f.Processes, id)
}

// Joinable does what Process does, but only among the processes that run.
func (f *Found) Joinable(id string) (protocol.ListedProcess, error) {
	running := f.Running()
	if left := f.Left(); len(running) == 0 && len(left) > 0 {
		return protocol.ListedProcess{}, fmt.Errorf(
			"the command of session %s has ended, and only processes that it has left behind run: agent logs -f %s follows their output, agent kill %s ends them",
			f.Name, f.Name, f.Name)
	}
	if len(running) == 0 {
		return protocol.ListedProcess{}, fmt.Errorf("nothing runs in session %s: agent logs %s shows its output", f.Name, f.Name)
	}
	return pick(f.Name, running, id)
}

// maxShown bounds the processes that an error names.
const maxShown = 8

func pick(session string, all []protocol.ListedProcess, id string) (protocol.ListedProcess, error) {
	var ids []string
	for _, p := range all {
		if p.ProcessID == id || id == "" && len(all) == 1 {
			return p, nil
		}
		if len(ids) < maxShown {
			ids = append(ids, plain(p.ProcessID, maxCommand))
		} else if len(ids) == maxShown {
			ids = append(ids, "…")
		}
	}
	switch {
	case len(all) == 0:
		return protocol.ListedProcess{}, fmt.Errorf("session %s has no process", session)
	case id == "":
		return protocol.ListedProcess{}, fmt.Errorf("session %s has several processes: name one of %s", session, strings.Join(ids, ", "))
	}
	return protocol.ListedProcess{}, fmt.Errorf("session %s has no process %q: it has %s", session, id, strings.Join(ids, ", "))
}

// NewName makes up a name that people can tell apart, type and remember.
func NewName() string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // it never fails
	tail := strings.ToLower(base32.StdEncoding.EncodeToString(random[2:])[:3])
	return fmt.Sprintf("%s-%s-%s", qualities[int(random[0])%len(qualities)], animals[int(random[1])%len(animals)], tail)
}

var (
	qualities = strings.Fields(`amber bold brave brisk calm clever crisp eager early fair fast fine fresh gentle glad
		grand green happy keen kind late light lucky merry mild neat noble proud quick quiet rapid ready rosy royal
		sharp shy silent silver smart snowy soft solid steady still sunny swift tidy vivid warm wild wise young`)
	animals = strings.Fields(`ant badger bat bear beaver bee bird bison cat crab crane crow deer dove duck eagle eel
		elk falcon ferret finch fox frog gecko goat goose hare hawk heron horse ibex jay koala lark lion lynx mole
		moose moth mouse newt otter owl panda pony puma quail rabbit raven robin seal shark sheep snail stork swan
		tiger toad trout turtle viper whale wolf wren yak zebra`)
)
