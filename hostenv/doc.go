// Package hostenv finds out what this machine says about itself: the shell of
// the user, the home and temporary directories, the build of the running
// program, and the layers of configuration that a client may ask for (rpc.md
// 3.4 and 3.6).
//
// All functions read the machine anew at each call and may run at once. Paths
// in and out are native.
package hostenv
