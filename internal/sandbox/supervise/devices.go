package supervise

import (
	"slices"

	"golang.org/x/sys/unix"
)

// A command may open devices that reveal nothing and store nothing, and its own
// terminals: those at its descriptors 0 to 2, those that it makes with /dev/ptmx,
// its controlling terminal, /dev/tty, and those that the policy names. All others are EACCES. A
// device is identified by its number, whatever its path.

// openDevice opens the device at the place.
func (r *request) openDevice(p *place, o opening) callResult {
	o.alone = true
	char := p.Stat.Mode&unix.S_IFMT == unix.S_IFCHR
	major, minor := unix.Major(p.Stat.Rdev), unix.Minor(p.Stat.Rdev)
	const memory, terminal = 1, 5 // the kernel's admin-guide/devices.txt
	switch {
	case char && major == memory && slices.Contains([]uint32{3, 5, 7, 8, 9}, minor): // null, zero, full, random, urandom
		o.alone = false
	case char && major == terminal && minor == 0:
		return r.openControlling(o)
	case char && major == terminal && minor == 2:
		return r.openPTMX(p, o)
	case char && r.n.terminals.has(&p.Stat), r.n.namesDevice(&p.Stat):
	default:
		return fail(unix.EACCES)
	}
	fd, err := r.reopen(p.FD, o)
	return opened(fd, err, o)
}

// openControlling opens the controlling terminal of the caller. Opening /dev/tty
// here would open the terminal of this process.
func (r *request) openControlling(o opening) callResult {
	device, err := controllingTerminal(r.thread())
	if err = r.there(err); err != nil {
		return fail(err)
	}
	own, err := r.n.terminals.open(device)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(own)
	fd, err := r.reopen(own, o)
	return opened(fd, err, o)
}

// openPTMX makes a new pair of terminals, and notes the terminal that the caller
// will open by its path.
func (r *request) openPTMX(p *place, o opening) callResult {
	fd, err := r.reopen(p.FD, o)
	if err != nil {
		return fail(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = r.n.terminals.note(ptyPath(number))
	}
	if err != nil {
		unix.Close(fd)
		return fail(err)
	}
	return o.given(fd)
}
