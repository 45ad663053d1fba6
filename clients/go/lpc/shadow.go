package lpc

import "hash/fnv"

const (
	sampled      = 4  // one block in so many is followed; a power of two
	fewestBlocks = 64 // of a shadow cache; where one in so many gives fewer, more are sampled
)

// Shadows are two caches that hold no content, of a sample of the blocks at the same share of the capacity: what each hits is
// what a whole cache under its rule would.
type Shadows struct {
	credit, lru *Cache
	room        int
	mask        uint32
}

// NewShadows are those of a cache of so many blocks.
func NewShadows(capacity int) *Shadows {
	every := sampled
	for every > 1 && capacity/every < fewestBlocks {
		every /= 2
	}
	room := capacity / every
	if room < 1 {
		room = 1
	}
	s := &Shadows{credit: NewCache(room), lru: NewCache(room), room: room, mask: uint32(every - 1)}
	s.credit.Trust(true)
	return s
}

// Observe shows a request that has ended, whose answer is worth what worth says at a lifetime; it returns what each would have
// hit of it.
func (s *Shadows) Observe(chain []string, conversation string, now float64, worth func(lifetime float64) float64) (creditHits, lruHits int) {
	part := s.sample(chain)
	creditHits = s.serve(s.credit, part, conversation, now, worth(s.credit.Lifetime()))
	return creditHits, s.serve(s.lru, part, conversation, now, 0)
}

// Lay shows the credit of an answer that came late.
func (s *Shadows) Lay(chain []string, conversation string, tLast float64, worth func(lifetime float64) float64) {
	s.credit.Lay(s.sample(chain), conversation, tLast+worth(s.credit.Lifetime()))
}

func (s *Shadows) serve(c *Cache, chain []string, conversation string, now, credit float64) int {
	hits := c.Use(chain)
	for c.Len() > s.room {
		if _, ok := c.Evict(now); !ok {
			break
		}
	}
	c.Free(chain, conversation, now, credit)
	return hits
}

func (s *Shadows) sample(chain []string) []string {
	var part []string
	for _, hash := range chain {
		h := fnv.New32a()
		h.Write([]byte(hash))
		if h.Sum32()&s.mask == 0 && len(part) < s.room {
			part = append(part, hash)
		}
	}
	return part
}
