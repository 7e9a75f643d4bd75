// Package socket is one WebSocket of the relay (remote.md 4), at either end:
// whole binary messages in pooled buffers, and many lanes that share the way
// out.
//
// A [Lane] is what one stream writes to. Its frames keep their order; between
// lanes the [Socket] decides: one frame a lane and turn, small frames before
// bulk, and never so many of them that bulk stops. Whoever finds the socket
// idle writes its own frame without a change of goroutine; under load a
// goroutine that lives only as long puts small frames together into one system
// call.
//
//	s, err := socket.Dial(ctx, url, header, socket.Config{})
//	...
//	lane := s.NewLane(0)
//	m := socket.NewMessage(len(text))
//	m.Bytes = append(m.Bytes, text...)
//	err = lane.Send(m) // which releases m
//
// A close frame is never sent, and a text message is never more than an error
// of one Read.
package socket
