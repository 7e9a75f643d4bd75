package view

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/execagent/execagent/internal/sandbox/resolve"
	"golang.org/x/sys/unix"
)

// A command whose connections are transparent has a resolver of its own, in its network namespace
// (transparent.md 3). Two files lead programs there: /etc/resolv.conf names it, and /etc/hosts has no
// addresses but loopback ones, because an address does not tell which name is meant. Each is shown in
// place of the file that the policy shows, or that a link leads to. Where the policy shows none,
// programs ask 127.0.0.1, at which the resolver answers too.
//
// The policy does not depend on these mounts. Without one, a program finds name servers that it
// cannot reach.

// nameServices are folders with the sockets of services that look names up for anybody. A command
// could only connect to them if it may use all UNIX sockets.
var nameServices = []string{"/run/nscd", "/run/systemd/resolve", "/run/avahi-daemon"}

const (
	resolvConf = "etc/resolv.conf"
	hostsFile  = "etc/hosts"

	resolvText = "nameserver 127.0.0.53\n"
	// maxHosts bounds the bytes of the hosts file that are read.
	maxHosts = 1 << 20
)

// resolverFiles are the names of the files among the masks, and their paths in the view.
var resolverFiles = [...]struct{ mask, path string }{{"resolv.conf", resolvConf}, {"hosts", hostsFile}}

// makeResolver puts both files among the masks.
func (b *builder) makeResolver(masks int) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	old, err := b.readHosts()
	if err != nil {
		return err
	}
	for i, text := range [][]byte{[]byte(resolvText), loopbackHosts(old, host)} {
		fd, err := unix.Openat(masks, resolverFiles[i].mask, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o444)
		if err != nil {
			return fmt.Errorf("openat: %w", err)
		}
		n, err := unix.Write(fd, text)
		unix.Close(fd)
		if err != nil || n < len(text) {
			return fmt.Errorf("write of %d bytes: %w", n, err)
		}
	}
	return nil
}

// readHosts reads the hosts file of the original root; it is empty if it cannot be read.
func (b *builder) readHosts() ([]byte, error) {
	fd, err := unix.Openat2(b.original, hostsFile, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, nil
	}
	f := os.NewFile(uintptr(fd), hostsFile)
	defer f.Close()
	if mode, err := resolve.FileKind(fd); err != nil || mode != unix.S_IFREG {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxHosts))
}

// showResolver mounts both files, where the view has files of these names.
func (b *builder) showResolver() error {
	for _, f := range resolverFiles {
		if err := b.showFile(f.mask, f.path); err != nil {
			return mountError("the file of a resolver", "/"+f.path, "", err)
		}
	}
	return nil
}

// showFile shows a mask in place of the file at the path in the view, if there is one.
func (b *builder) showFile(mask, path string) error {
	old, err := unix.Openat2(b.view, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ELOOP:
		return nil // nobody finds one
	default:
		return fmt.Errorf("openat2: %w", err)
	}
	defer unix.Close(old)
	if mode, err := resolve.FileKind(old); err != nil || mode != unix.S_IFREG {
		return err // it is denied, or nothing that programs would read
	}
	m, err := b.masks.object(mask)
	if err != nil {
		return err
	}
	defer unix.Close(int(m))
	if err := attach(m, old); err != nil && err != unix.ENOENT { // it was removed meanwhile
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// loopbackHosts returns the lines of a hosts file that have a loopback address. It adds localhost and
// the own host, if no such line has them.
func loopbackHosts(text []byte, host string) []byte {
	var kept []byte
	named := map[string]bool{}
	const most = 32 << 10 // bytes, so that it fits
	for line := range bytes.Lines(text) {
		said, _, _ := bytes.Cut(line, []byte("#"))
		fields := strings.Fields(string(said))
		if len(fields) < 2 || len(kept)+len(line) > most {
			continue
		}
		addr, err := netip.ParseAddr(fields[0])
		if err != nil || !addr.Unmap().IsLoopback() {
			continue
		}
		for _, name := range fields[1:] {
			named[strings.ToLower(name)] = true
		}
		kept = append(kept, strings.Join(fields, " ")+"\n"...)
	}
	if !named["localhost"] {
		kept = append(kept, "127.0.0.1 localhost\n::1 localhost\n"...)
	}
	if host != "" && !named[strings.ToLower(host)] && !strings.ContainsAny(host, " \t\n#") {
		kept = append(kept, "127.0.0.1 "+host+"\n"...)
	}
	return kept
}
