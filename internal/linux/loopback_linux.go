package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// RaiseLoopback sets the interface lo of this network namespace up. The kernel then gives lo its
// addresses (netdevice(7)). The caller needs CAP_NET_ADMIN.
func RaiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return os.NewSyscallError("ioctl", err)
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	return os.NewSyscallError("ioctl", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
}
