package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"sync/atomic"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// outside is another process of the user, which is not confined. It opens what nobody inside may
// reach, prints where that is, and at the end of its input prints what it has noticed.
func outside(p *places) error {
	hits := make(chan os.Signal, 64)
	signal.Notify(hits, harmless)
	var reached atomic.Int64
	tcp, err := listen(p, &reached)
	if err != nil {
		return err
	}
	master, terminal, err := pty.Open()
	if err != nil {
		return err
	}
	defer func() { _, _ = master.Close(), terminal.Close() }()
	id, err := unix.SysvShmGet(p.shm, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
	if err != nil {
		return fmt.Errorf("shmget: %w", err)
	}
	defer unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(map[string]any{"tcp": tcp, "pts": terminal.Name(), "pid": os.Getpid()}); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return out.Encode(map[string]any{"reached": reached.Load(), "signals": len(hits)})
}

// listen opens the sockets, until the program ends, and returns the address of the one that may
// be reached where there is a network. All others count their visitors. A stream sends each a
// byte.
func listen(p *places, reached *atomic.Int64) (tcp string, err error) {
	for _, at := range []struct{ network, address string }{
		{"unix", p.stream}, {"unix", "@" + p.abstract}, {"tcp", "127.0.0.1:0"},
	} {
		if err := vacate(at.address); err != nil {
			return "", err
		}
		l, err := net.Listen(at.network, at.address)
		if err != nil {
			return "", err
		}
		if at.network == "tcp" {
			tcp = l.Addr().String()
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if at.network != "tcp" {
					reached.Add(1)
				}
				_, _ = c.Write([]byte("x")) // to one that may be gone
				_ = c.Close()
			}
		}()
	}
	for _, name := range []string{p.dgram, "@" + p.abstract + "-dgram"} {
		if err := vacate(name); err != nil {
			return "", err
		}
		c, err := net.ListenPacket("unixgram", name)
		if err != nil {
			return "", err
		}
		go func() {
			for {
				if _, _, err := c.ReadFrom(make([]byte, 64)); err != nil {
					return
				}
				reached.Add(1)
			}
		}()
	}
	for _, path := range []string{p.stream, p.dgram} {
		if err := os.Chmod(path, 0o666); err != nil {
			return "", err
		}
	}
	return tcp, nil
}

// vacate removes the socket of an earlier run of this program that was killed.
func vacate(path string) error {
	if path[0] != '/' {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
