package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/proxy"
	"golang.org/x/sys/unix"
)

// A dialer connects to an address in one of the ways that are compared.
type dialer struct {
	name string
	dial func(address string) (net.Conn, error)
}

var dialers = []dialer{{"transparent", direct}, {"socks5", socks5}}

func direct(address string) (net.Conn, error) { return net.Dial("tcp4", address) }

// socks5 connects through the proxy that the variables name.
func socks5(address string) (net.Conn, error) {
	_, via, _ := strings.Cut(os.Getenv("ALL_PROXY"), "://")
	d, err := proxy.SOCKS5("tcp4", via, nil, nil)
	if err != nil {
		return nil, err
	}
	return d.Dial("tcp", address)
}

// measure does what the arguments say, inside of the sandbox: PORT speed, PORT idle, PORT connects N.
func measure(args []string) error {
	port := args[0]
	switch args[1] {
	case "speed":
		return speed(place(0, port))
	case "idle":
		return idle(place(0, port))
	default:
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return connects(port, n)
	}
}

// speed prints the time to the first byte, and the throughput.
func speed(address string) error {
	const times = 1000
	took := make([][]time.Duration, len(dialers))
	for range times {
		for i, d := range dialers { // by turns
			began := time.Now()
			conn, err := d.dial(address)
			if err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			if err := says(conn, []byte{'x'}); err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			took[i] = append(took[i], time.Since(began))
			_ = conn.Close()
		}
	}
	for i, d := range dialers {
		fmt.Printf("  first byte, %s: %.3f ms\n", d.name, ms(median(took[i])))
	}
	for _, d := range dialers {
		conn, err := d.dial(address)
		if err != nil {
			return err
		}
		began := time.Now()
		_, _ = conn.Write([]byte{source}) // the next call has its error
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 256<<10))
		if err != nil || n != volume {
			return fmt.Errorf("%s: %d bytes have come: %w", d.name, n, err)
		}
		fmt.Printf("  throughput, %s: %.0f MB/s\n", d.name, float64(n)/1e6/time.Since(began).Seconds())
		_ = conn.Close()
	}
	return nil
}

// says sends bytes to an echo, and compares what comes back.
func says(conn net.Conn, what []byte) error {
	if _, err := conn.Write(append([]byte{echo}, what...)); err != nil {
		return err
	}
	back := make([]byte, len(what))
	if _, err := io.ReadFull(conn, back); err != nil {
		return err
	}
	if string(back) != string(what) {
		return fmt.Errorf("%w: %q came back for %q", errWrong, back, what)
	}
	return nil
}

var errWrong = errors.New("the connection leads elsewhere")

// idle opens connections, says so, and holds them open until its input ends.
func idle(address string) error {
	input := bufio.NewReader(os.Stdin)
	fmt.Println("begin")
	if _, err := input.ReadString('\n'); err != nil {
		return err
	}
	for range idleConnections {
		conn, err := direct(address)
		if err != nil {
			return err
		}
		if err := says(conn, []byte{'x'}); err != nil {
			return err
		}
	}
	fmt.Println("open")
	_, err := input.ReadString('\n')
	if err == io.EOF {
		return nil
	}
	return err
}

// connects makes n connections, 100 at once, and gives up every tenth.
func connects(port string, n int) error {
	warm, err := direct(place(0, port)) // the runtime keeps descriptors of its own
	if err != nil {
		return err
	}
	_ = warm.Close()
	before, err := descriptors()
	if err != nil {
		return err
	}
	var next, failed, wrong, gone atomic.Int64
	var first sync.Once
	var running sync.WaitGroup
	for range 100 {
		running.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(n) {
					return
				}
				at := place(int(i), port)
				if i%10 == 0 {
					giveUp(at)
					gone.Add(1)
					continue
				}
				conn, err := direct(at)
				if err == nil {
					err = says(conn, binary.BigEndian.AppendUint64(nil, uint64(i)))
					_ = conn.Close()
				}
				if errors.Is(err, errWrong) {
					wrong.Add(1)
				} else if err != nil {
					failed.Add(1)
					first.Do(func() { fmt.Println("  the first failure:", err) })
				}
			}
		})
	}
	began := time.Now()
	running.Wait()
	after, err := descriptors()
	if err != nil {
		return err
	}
	fmt.Printf("  %d connects in %.1f s: %d given up, %d failed, %d wrong, %d descriptors left\n", n, time.Since(began).Seconds(), gone.Load(), failed.Load(), wrong.Load(), after-before)
	if failed.Load()+wrong.Load() > 0 || after > before {
		return errors.New("connections were lost, wrong or left")
	}
	return nil
}

// giveUp begins a connection and closes it at once.
func giveUp(at string) {
	to, err := net.ResolveTCPAddr("tcp4", at)
	if err != nil {
		return
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	_ = unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte(to.IP.To4()), Port: to.Port}) // EINPROGRESS
	_ = unix.Close(fd)
}

// descriptors returns how many descriptors this process has.
func descriptors() (int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	return len(entries), err
}
