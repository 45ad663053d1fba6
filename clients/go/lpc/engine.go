package lpc

import "learnedprefixcache/lpcv1"

// Engine is what a scheduler calls: admission, end, eviction. It belongs to the scheduler's goroutine.
type Engine struct {
	Client *Client
	Cache  *Cache
	late   map[string]ended
}

type ended struct {
	chain        []string
	conversation string
	tLast        float64
}

// NewEngine joins a client and a cache.
func NewEngine(client *Client, cache *Cache) *Engine {
	return &Engine{Client: client, Cache: cache, late: map[string]ended{}}
}

// Admitted asks about a request and pins the blocks of its prompt; it returns how many of the first of them are cached.
func (e *Engine) Admitted(id string, conversation *lpcv1.Conversation, chain []string) int {
	e.Client.Ask(id, conversation)
	return e.Cache.Use(chain)
}

// Ended frees the blocks of a request that came to its end, or (completed false) was aborted: then its prediction counts for nothing.
// now: seconds since the epoch. It returns the credit that they got.
func (e *Engine) Ended(id, conversation string, chain []string, completed bool, now float64) float64 {
	credit := 0.0
	if !completed {
		e.Client.Forget(id)
	} else if answer, answered, expected := e.Client.Take(id); answered {
		credit = e.worth(answer)
	} else if expected && len(e.late) < Waiting {
		e.late[id] = ended{chain, conversation, now}
	}
	e.Cache.Free(chain, conversation, now, credit)
	return credit
}

// Step lays answers that came after their request's end on the blocks that are still free. Call it once per scheduler step.
func (e *Engine) Step() int {
	laid := 0
	for id, of := range e.late {
		answer, answered, expected := e.Client.Take(id)
		if answered {
			e.Cache.Lay(of.chain, of.conversation, of.tLast+e.worth(answer))
			laid++
		}
		if answered || !expected {
			delete(e.late, id)
		}
	}
	return laid
}

func (e *Engine) worth(answer Answer) float64 {
	credit, err := answer.Grid.At(answer.Table, e.Cache.Lifetime())
	if err != nil {
		return 0
	}
	return credit
}
