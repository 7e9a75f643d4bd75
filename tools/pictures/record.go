package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// script has the commands that the recording shows.
var script = []string{
	`agent doctor | head -n 12`,
	`agent exec -e NAME=world -- sh -c 'echo "hello $NAME"'`,
	`agent sandbox --workspace . -- sh -c 'echo yes > mine; echo no > /etc/note'`,
	`cat mine`,
}

// Size of the terminal, in characters.
const (
	columns = 96
	rows    = 30
)

// pauses is how long the recording pauses before each command, so that a reader can read the
// screen.
const pauses = 900 * time.Millisecond

// record runs the script at a shell in a terminal, in a new folder, and returns the recording. key
// is the time for each typed key; with 0 there are no pauses either.
func record(agent string, key time.Duration) (cast []byte, err error) {
	folder, err := os.MkdirTemp("", "demo")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if agent, err = exec.LookPath(agent); err != nil {
		return nil, err
	}
	if agent, err = filepath.Abs(agent); err != nil {
		return nil, err
	}
	ours, theirs, err := openTerminal()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	shell := exec.Command("/bin/sh", "-i")
	shell.Dir = folder
	shell.Env = []string{"PATH=" + filepath.Dir(agent) + ":/usr/bin:/bin", "HOME=" + folder, "PS1=" + prompt, "PS2=> ", "TERM=dumb", "LC_ALL=C.UTF-8"}
	shell.Stdin, shell.Stdout, shell.Stderr = theirs, theirs, theirs
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		return nil, err
	}
	_ = theirs.Close() // the shell has it
	defer func() { _ = shell.Process.Kill(); _ = shell.Wait() }()

	t := &taker{terminal: ours, began: time.Now()}
	for _, command := range script {
		if err := t.until("\n" + prompt); err != nil {
			return nil, err
		}
		if key > 0 {
			time.Sleep(pauses)
		}
		for _, k := range command {
			if _, err := ours.WriteString(string(k)); err != nil {
				return nil, err
			}
			if err := t.until(string(k)); err != nil {
				return nil, err
			}
			time.Sleep(key)
		}
		if _, err := ours.WriteString("\n"); err != nil {
			return nil, err
		}
	}
	if err := t.until("\n" + prompt); err != nil {
		return nil, err
	}
	return encode(t.events)
}

// taker records the output of a terminal.
type taker struct {
	terminal *os.File
	began    time.Time
	events   []event
	text     string // of all events
	seen     int    // bytes of text before the part in which until searches next
}

// until records output until the output has this end, after the end that it found before. The first
// prompt has no line before it.
func (t *taker) until(end string) error {
	buf := make([]byte, 4096)
	for {
		if len(t.events) > 0 && strings.HasSuffix("\n"+t.text[t.seen:], end) {
			t.seen = len(t.text)
			return nil
		}
		n, err := t.terminal.Read(buf)
		if err != nil {
			return fmt.Errorf("waiting for %q after %q: %w", end, t.text, err)
		}
		t.text += string(buf[:n])
		t.events = append(t.events, event{time.Since(t.began).Seconds(), string(buf[:n])})
	}
}

// encode writes a recording.
func encode(events []event) ([]byte, error) {
	var cast bytes.Buffer
	lines := json.NewEncoder(&cast)
	lines.SetEscapeHTML(false)
	err := lines.Encode(header{Version: 2, Width: columns, Height: rows, Title: "agent: what this host can enforce, a command, and a command in a sandbox"})
	for _, e := range events {
		var line []byte
		if line, err = e.MarshalJSON(); err != nil {
			return nil, err
		}
		cast.Write(append(line, '\n'))
	}
	return cast.Bytes(), err
}

// openTerminal makes a pseudo terminal. ours is its master.
func openTerminal() (ours, theirs *os.File, err error) {
	ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = ours.Close()
		}
	}()
	var number uint32
	unlocked := uint32(0)
	size := [4]uint16{rows, columns}
	for _, call := range []struct {
		number uintptr
		value  unsafe.Pointer
	}{
		{syscall.TIOCSPTLCK, unsafe.Pointer(&unlocked)}, {syscall.TIOCGPTN, unsafe.Pointer(&number)}, {syscall.TIOCSWINSZ, unsafe.Pointer(&size)},
	} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, ours.Fd(), call.number, uintptr(call.value)); errno != 0 {
			return nil, nil, os.NewSyscallError("ioctl", errno)
		}
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	return ours, theirs, err
}
