package main

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	return closing(fd, err)
}

func pair(kind int) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
	}
	return err
}

// connect connects a socket of the UNIX family; a name that begins with "@" is
// abstract.
func connect(kind int, name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: name})
}

// send sends a datagram to a socket of the UNIX family without connecting.
func send(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.SendmsgN(fd, []byte("escaped"), nil, &unix.SockaddrUnix{Name: name}, 0)
	return err
}

// serve listens on a socket of the UNIX family.
func serve(name string) error {
	l, err := net.Listen("unix", name)
	if err != nil {
		return cause(err)
	}
	defer l.Close()
	c, err := net.DialTimeout("unix", name, deadline)
	if err != nil {
		return cause(err)
	}
	return c.Close()
}

// cause returns the errno in an error of package net.
func cause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

var networkAttempts = []attempt{
	{"43a an internet socket", func(*places) error { return socket(unix.AF_INET, unix.SOCK_STREAM, 0) }},
	{"43b connect to a port of the host", func(p *places) error {
		c, err := net.DialTimeout("tcp", p.tcp, deadline)
		if err != nil {
			return cause(err)
		}
		return c.Close()
	}},
	{"43c an IPv6 socket", func(*places) error { return socket(unix.AF_INET6, unix.SOCK_STREAM, 0) }},
	{"43d MPTCP", func(*places) error { return socket(unix.AF_INET, unix.SOCK_STREAM, 262) }},
	{"44 a datagram to a name server", func(*places) error { return socket(unix.AF_INET, unix.SOCK_DGRAM, 0) }},
	{"45a netlink", func(*places) error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE) }},
	{"45b netlink audit", func(*places) error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT) }},
	{"46a packet socket", func(*places) error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) }},
	{"46b raw socket", func(*places) error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }},
	{"47a a VM socket", func(*places) error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) }},
	{"47b a pair of VM sockets", func(*places) error {
		_, err := unix.Socketpair(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
		return err
	}},
	{"47c a VM socket with the high half set", func(*places) error {
		return call(unix.SYS_SOCKET, 1<<32|unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	}},
	{"48a connect to a socket of the host", func(p *places) error { return connect(unix.SOCK_STREAM, p.stream) }},
	{"48b connect by another path", func(p *places) error {
		fd, err := unix.Open(p.out, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return connect(unix.SOCK_STREAM, "/proc/self/fd/"+itoa(fd)+"/stream")
	}},
	{"48c connect from its directory", func(p *places) error {
		if err := os.Chdir(p.out); err != nil {
			return err
		}
		defer os.Chdir("/")
		return connect(unix.SOCK_STREAM, "stream")
	}},
	{"48d connect through a link in the workspace", func(p *places) error {
		name := p.repo + "/to-stream"
		if err := os.Symlink(p.stream, name); err != nil {
			return cause(err)
		}
		defer os.Remove(name)
		return connect(unix.SOCK_STREAM, name)
	}},
	{"48e send to a socket of the host", func(p *places) error { return send(p.dgram) }},
	{"48f connect a datagram socket", func(p *places) error { return connect(unix.SOCK_DGRAM, p.dgram) }},
	{"48g send from one of a pair", func(p *places) error {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fds[0])
		defer unix.Close(fds[1])
		_, err = unix.SendmsgN(fds[0], []byte("escaped"), nil, &unix.SockaddrUnix{Name: p.dgram}, 0)
		return err
	}},
	{"48h send many to a socket of the host", func(p *places) error { return call(unix.SYS_SENDMMSG, ^uintptr(0), 0, 0, 0) }},
	{"48i swap the name while connecting", func(p *places) error { return raced(p) }},
	{"48j change the address while connecting", func(p *places) error { return rewritten(p) }},
	{"49a connect to an abstract socket", func(p *places) error { return connect(unix.SOCK_STREAM, "@"+p.abstract) }},
	{"49b send to an abstract socket", func(p *places) error { return send("@" + p.abstract + "-dgram") }},
	{"50 listen in the workspace", func(p *places) error { return serve(p.repo + "/sock") }},
	{"x50a a datagram socket of the UNIX family", func(*places) error { return socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0) }},
	{"x50b a raw socket of the UNIX family", func(*places) error { return socket(unix.AF_UNIX, unix.SOCK_RAW, 0) }},
	{"x50c a pair of datagram sockets", func(*places) error { return pair(unix.SOCK_DGRAM) }},
	{"x50d a pair of stream sockets", func(*places) error { return pair(unix.SOCK_STREAM) }},
	{"x50e a pair of packet sockets", func(*places) error { return pair(unix.SOCK_SEQPACKET) }},
	{"x50f a crypto socket", func(*places) error { return socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) }},
	{"x50g an express data path", func(*places) error { return socket(unix.AF_XDP, unix.SOCK_RAW, 0) }},
	{"x50h listen by an abstract name", func(p *places) error { return serve("@" + p.abstract + "-own") }},
}

// raced connects, for a while, to a name that is a socket of our own and one of the host by
// turns. It has succeeded if the host's ever answered: that one sends a byte to whoever connects,
// ours does not.
func raced(p *places) error {
	own, name, link := p.repo+"/own", p.repo+"/turn", p.repo+"/turned"
	l, err := net.Listen("unix", own)
	if err != nil {
		return cause(err)
	}
	defer l.Close()
	stop := make(chan struct{})
	turning := make(chan struct{})
	go func() {
		defer close(turning)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			target := own
			if i%2 == 1 {
				target = p.stream
			}
			_ = os.Symlink(target, link)
			_ = os.Rename(link, name)
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	result := error(syscall.ECONNREFUSED)
	for until := time.Now().Add(racing); time.Now().Before(until) && result != nil; {
		c, err := net.DialTimeout("unix", name, deadline)
		if err != nil {
			continue
		}
		if n, _ := c.Read(make([]byte, 1)); n == 1 {
			result = nil
		}
		_ = c.Close()
	}
	close(stop)
	<-turning
	_, _ = os.Remove(name), os.Remove(link)
	return result
}

// rewritten connects to a name in memory that another thread changes meanwhile, between that of a
// socket of our own and the host's. It has succeeded as raced has.
func rewritten(p *places) error {
	own := p.repo + "/other"
	l, err := net.Listen("unix", own)
	if err != nil {
		return cause(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	var names [2][108]byte
	copy(names[0][:], own)
	copy(names[1][:], p.stream)
	address := unix.RawSockaddrUnix{Family: unix.AF_UNIX}
	memory := (*[108]byte)(unsafe.Pointer(&address.Path))
	*memory = names[0]
	stop, turning := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(turning)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				*memory = names[i%2]
			}
		}
	}()
	result := error(syscall.ECONNREFUSED)
	for until := time.Now().Add(racing); time.Now().Before(until) && result != nil; {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			result = err
			break
		}
		if call(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&address)), unix.SizeofSockaddrUnix) == nil {
			if n, _ := unix.Read(fd, make([]byte, 1)); n == 1 {
				result = nil
			}
		}
		_ = unix.Close(fd)
	}
	close(stop)
	<-turning
	return result
}
