package policy

import (
	"errors"
	"os"
	"path"
	"slices"
	"strings"
)

// gpuDevices are the devices of GPUs, as patterns. The first list says that there is a GPU; what the second
// one names comes with it.
var gpuDevices = [2][]string{
	{
		"/dev/nvidia[0-9]*",   // NVIDIA
		"/dev/kfd",            // AMD, for computing
		"/dev/dri/renderD*",   // every GPU with a driver of the kernel
		"/dev/accel/accel*",   // accelerators
		"/dev/dxg",            // Windows' Subsystem for Linux
		"/dev/mali[0-9]*",     // ARM
		"/dev/nvhost-gpu",     // NVIDIA's Tegra
		"/dev/nvgpu/igpu0/as", // the same, newer
		"/dev/nvmap",          // the same, memory
	}, {
		"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
		// Of the capabilities, 1 and 2 let a process divide GPUs into instances for others, and watch those.
		"/dev/nvidia-caps/nvidia-cap[3-9]", "/dev/nvidia-caps/nvidia-cap[1-9][0-9]*", "/dev/nvidia-caps-imex-channels/channel*",
		"/dev/dri/card*",
		"/dev/nvhost-*", "/dev/nvgpu/igpu0/*",
	},
}

// gpuFolders are what a view has to show for GPUs, as patterns, in addition to /usr, /etc and the like:
// the libraries of drivers, and what the kernel says of devices.
var gpuFolders = []string{
	"/opt/rocm*", "/opt/amdgpu*", "/opt/intel", "/opt/cuda*", // AMD, Intel, NVIDIA
	"/run/opengl-driver", "/run/opengl-driver-32", // NixOS
	"/sys/bus/pci", "/sys/class/accel", "/sys/class/drm", "/sys/class/kfd", "/sys/dev/char", "/sys/devices", "/sys/module",
}

// errNoGPU says what is missing.
var errNoGPU = errors.New("--gpu: there is no GPU: none of " + strings.Join(gpuDevices[0][:4], ", ") + " exists; drivers and containers have to provide them")

// gpu finds the devices of all GPUs, and the folders that a view has to show for them.
func (h Host) gpu() (devices, folders []string, err error) {
	if devices = h.matches(gpuDevices[0]); len(devices) == 0 {
		return nil, nil, errNoGPU
	}
	for _, name := range h.matches(gpuDevices[1]) {
		if !slices.Contains(devices, name) {
			devices = append(devices, name)
		}
	}
	return devices, h.matches(gpuFolders), nil
}

// matches returns the paths that match patterns, whose wildcards are in their last names. In a folder that
// cannot be listed, nothing matches.
func (h Host) matches(patterns []string) (paths []string) {
	list := h.List
	if list == nil {
		list = listHere
	}
	for _, pattern := range patterns {
		dir, base := path.Split(pattern)
		for _, name := range list(dir) {
			if ok, _ := path.Match(base, name); ok {
				paths = append(paths, dir+name)
			}
		}
	}
	return paths
}

// listHere returns the names in a folder of this machine, sorted.
func listHere(dir string) (names []string) {
	entries, _ := os.ReadDir(dir) // it need not exist
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
