package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Longest lines of stdin, newline included, in bytes (remote.md 12.3, 12.5; the
// reference takes ChatGPT tokens that are longer).
const (
	maxBearerLine = 16 << 10
	maxFrameLine  = 16 << 10
)

var (
	errLineLong = errors.New("line is too long")
	errLineOpen = errors.New("line has no newline")
)

// ReadBearer reads a bearer token from the first line of stdin and leaves the rest
// (remote.md 12.3). It waits until the line is complete or ctx ends; see
// [ReadCredentials] for reads that cannot be interrupted.
func ReadBearer(ctx context.Context, stdin *os.File) (TokenSource, error) {
	line, err := readLine(ctx, stdin, maxBearerLine)
	if err != nil {
		return nil, fmt.Errorf("reading the registration bearer from stdin: %w", err)
	}
	defer clear(line)
	token := string(trimNewline(line))
	if err := checkToken(token); err != nil {
		return nil, fmt.Errorf("the registration bearer on stdin %w", err)
	}
	return Bearer(token), nil
}

// ReadChatGPTToken reads a ChatGPT access token from the first line of stdin, which
// must be a pipe or socket: a JWT that names an account (remote.md 12.4).
// accountID, unless empty, must be that account. The token is not verified here:
// the registry does that, and gets the token over https only ([CheckBase]).
func ReadChatGPTToken(ctx context.Context, stdin *os.File, accountID string) (TokenSource, error) {
	info, err := stdin.Stat()
	if err != nil {
		return nil, fmt.Errorf("looking at stdin: %w", err)
	}
	if info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return nil, errors.New("a ChatGPT token is taken only from a pipe or socket; stdin is neither")
	}
	line, err := readLine(ctx, stdin, maxToken)
	if err != nil {
		return nil, fmt.Errorf("reading the ChatGPT token from stdin: %w", err)
	}
	defer clear(line)
	token := string(trimNewline(line))
	if err := checkToken(token); err != nil {
		return nil, fmt.Errorf("the ChatGPT token on stdin %w", err)
	}
	j, err := parseJWT(token)
	if err != nil {
		return nil, fmt.Errorf("the ChatGPT token on stdin %w", err)
	}
	account := j.account()
	if err := checkToken(account.id); err != nil {
		return nil, fmt.Errorf("the account of the ChatGPT token on stdin %w", err)
	}
	if accountID != "" && accountID != account.id {
		return nil, errors.New("the ChatGPT token on stdin is of another account than asked for")
	}
	return &bearer{name: "ChatGPT token", token: &token, account: account, httpsOnly: true}, nil
}

// trimNewline cuts one line ending off, of either kind.
func trimNewline(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
}

// readLine reads up to the first newline. The caller clears the line.
func readLine(ctx context.Context, stdin *os.File, limit int) ([]byte, error) {
	type result struct {
		line []byte
		err  error
	}
	got := make(chan result, 1) // buffered, so that the reader can end when no caller waits for it
	go func() {
		l := &lines{r: stdin, buf: make([]byte, limit)}
		line, err := l.next()
		line = bytes.Clone(line)
		clear(l.buf)
		got <- result{line, err}
	}()
	select {
	case r := <-got:
		if errors.Is(r.err, io.EOF) {
			r.err = errors.New("stdin ended before a line came")
		}
		return r.line, r.err
	case <-ctx.Done():
		if interrupt(stdin) {
			clear((<-got).line)
			_ = stdin.SetReadDeadline(time.Time{}) // works, because interrupt has just set one
		}
		return nil, context.Cause(ctx)
	}
}

// interrupt ends a Read of f that is under way. It returns false if f has no
// deadlines.
func interrupt(f *os.File) bool { return f.SetReadDeadline(time.Unix(1, 0)) == nil }

// lines splits the bytes of r into lines of at most len(buf) bytes, newline included.
type lines struct {
	r        io.Reader
	buf      []byte
	from, to int // the part of buf that next has not returned yet
}

// next returns one line with its newline, valid until the next call, which wipes
// it. An orderly end is io.EOF.
func (l *lines) next() ([]byte, error) {
	clear(l.buf[:l.from])
	copy(l.buf, l.buf[l.from:l.to])
	clear(l.buf[l.to-l.from : l.to])
	l.from, l.to = 0, l.to-l.from
	for looked := 0; ; {
		if i := bytes.IndexByte(l.buf[looked:l.to], '\n'); i >= 0 {
			l.from = looked + i + 1
			return l.buf[:l.from], nil
		}
		looked = l.to
		if l.to == len(l.buf) {
			return nil, errLineLong
		}
		n, err := l.r.Read(l.buf[l.to:])
		l.to += n
		switch {
		case n > 0 || err == nil:
		case errors.Is(err, io.EOF) && l.to > 0:
			return nil, errLineOpen
		default:
			return nil, err
		}
	}
}
