package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// link is a transport to a server, with methods to end it.
type link interface {
	mcp.Transport
	// cut makes all calls fail that wait for the server.
	cut(error)
	// shut ends everything that the transport has started, and waits for the end. It is called once
	// the session is over, even if there never was a session.
	shut()
}

// session is the session of one start of a server.
type session struct {
	*mcp.ClientSession
	cfg    *Config
	life   context.Context // ends with the session
	stop   context.CancelCauseFunc
	listed chan struct{} // has a value when the tools have changed
	tools  []*mcp.Tool   // guarded by Server.mu
}

// once starts the server over a link, and returns when nothing is left of this start. since is the
// time at which the server became ready; the zero time means never.
func (s *Server) once(l link) (since time.Time) {
	t := &session{cfg: &s.cfg, listed: make(chan struct{}, 1)}
	t.life, t.stop = context.WithCancelCause(s.life)
	err := t.start(l)
	var watching sync.WaitGroup
	if err == nil {
		since = time.Now()
		s.settle(Ready, t, nil)
		ended := make(chan error, 1)
		watching.Go(func() { ended <- t.Wait() }) // ends with the session
		err = s.serve(t, ended)
	}
	s.settle(Failed, nil, err)
	t.stop(err) // the session waits for calls that are under way
	if !since.IsZero() {
		l.cut(err)
		_ = t.Close() // it has ended for another reason already
		watching.Wait()
	}
	l.shut()
	return since
}

// start connects, and asks for the tools. With an error there is no session.
func (t *session) start(l link) error {
	ctx, cancel := t.bounded(context.Background(), t.cfg.StartTimeout)
	defer cancel()
	// The session also waits for other things than calls when it ends, so the link must be cut when
	// ctx ends.
	defer context.AfterFunc(ctx, func() { l.cut(context.Cause(ctx)) })()
	c := mcp.NewClient(t.cfg.Info, &mcp.ClientOptions{
		// The client offers servers no capabilities: neither for their requests, nor for questions
		// within a call.
		Capabilities:   &mcp.ClientCapabilities{},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			select {
			case t.listed <- struct{}{}:
			default: // it is known already
			}
		},
	})
	var err error
	t.ClientSession, err = c.Connect(ctx, l, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err == nil {
		if t.tools, err = t.list(ctx); err == nil {
			return nil
		}
		_ = t.Close() // no call is under way
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return err
}

// serve follows the list of tools until the session is over, and returns why it is.
func (s *Server) serve(t *session, ended <-chan error) error {
	for {
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("the server has closed the connection")
			}
			return err
		case <-t.life.Done():
			return context.Cause(t.life)
		case <-t.listed:
		}
		ctx, cancel := t.bounded(context.Background(), t.cfg.CallTimeout)
		tools, err := t.list(ctx)
		cancel()
		if err == nil {
			s.mu.Lock()
			t.tools = tools
			s.mu.Unlock()
		} // else the list stays as it was; a session that is over is seen above
		select {
		case <-time.After(relistPause):
		case <-t.life.Done():
		}
	}
}

// call calls a tool.
func (t *session) call(ctx context.Context, params *mcp.CallToolParams) (*mcp.CallToolResult, error) {
	ctx, cancel := t.bounded(ctx, t.cfg.CallTimeout)
	defer cancel()
	result, err := t.CallTool(ctx, params)
	if err != nil {
		return nil, cmp.Or(context.Cause(t.life), context.Cause(ctx), err)
	}
	return result, nil
}

// list requests all tools. It leaves out tools with an unusable name, and tools whose name an
// earlier tool has.
func (t *session) list(ctx context.Context) (tools []*mcp.Tool, err error) {
	if c := t.InitializeResult().Capabilities; c == nil || c.Tools == nil {
		return nil, nil
	}
	number, size := 0, 0
	seen, params := map[string]bool{}, &mcp.ListToolsParams{}
	for {
		page, err := t.ListTools(ctx, params)
		if err != nil {
			return nil, err
		}
		for _, tool := range page.Tools {
			if tool == nil {
				continue
			}
			text, err := json.Marshal(tool)
			if err != nil {
				return nil, err
			}
			size += costOf(text)
			if isToolName(tool.Name) && !seen[tool.Name] {
				seen[tool.Name] = true
				tools = append(tools, tool)
			}
		}
		if number += max(1, len(page.Tools)); number > maxTools || size > maxToolBytes {
			return nil, fmt.Errorf("the server has more than %d tools, or more than %d bytes of them", maxTools, maxToolBytes)
		}
		if page.NextCursor == "" {
			return tools, nil
		}
		params.Cursor = page.NextCursor
	}
}

// isToolName reports whether a tool may have this name: any printable text of one line within the
// bound. This includes all names that the protocol recommends.
func isToolName(name string) bool {
	return name != "" && len(name) <= maxToolName && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// timeoutError says that a server has not answered in time.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string        { return fmt.Sprintf("no answer within %v", e.after) }
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// bounded returns a context that also ends with the session, and after limit.
func (t *session) bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, expire := context.WithTimeoutCause(ctx, limit, &timeoutError{limit})
	ctx, cancel := during(ctx, t.life)
	return ctx, func() {
		cancel()
		expire()
	}
}

// during returns a context that also ends when life ends, with the cause of life.
func during(ctx, life context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		unhook()
		cancel(nil)
	}
}
