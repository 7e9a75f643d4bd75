// Package sockfd keeps copies of the sockets that a supervisor has made for a
// command. A copy is a descriptor of the supervisor for the open file that the
// command has too. With it the supervisor can connect, bind or send for the
// command, without being allowed to take a descriptor out of another process.
//
// A copy keeps the socket open after the command has closed it: a peer would not
// see the end of the connection, a port would stay taken, and an epoll(7) of the
// command would still report the socket. So a copy is dropped as early as
// possible:
//
//   - when the socket is connected or listens: after that the command needs no help
//   - when no process of the command has the socket open: the descriptors in
//     procfs show it ([Copies.Sweep]). A timer looks every second while there are
//     copies, and a caller that is short of ports or descriptors looks at once
//
// A [Message] is what the supervisor sends for the command.
//
// The package does not know what a socket may be used for, and decides nothing. All methods
// may be called at once. Linux only.
package sockfd
