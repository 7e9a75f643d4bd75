// Package kernels boots kernels of Debian in a virtual machine, and makes the attempts of
// test/e2e/escape there. A virtual machine is needed because a new kernel that pretends an old
// version does not behave like an old kernel.
//
// It has tests alone. They take minutes and need apt-get, dpkg-deb and
// qemu-system-x86_64, so they run on demand (make kernels) and not in CI.
package kernels
