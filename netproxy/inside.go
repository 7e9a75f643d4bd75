package netproxy

func (p *Proxy) intercepts(request) bool { return false }
