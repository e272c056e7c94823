// A group of etcd/raft members that does what standard input says, one command a line, and prints
// what each member has after every command. The other half is test_oracle.py.
package main

import (
	"bufio"
	"fmt"
	"io/ioutil"
	"log"
	"os"
	"sort"
	"strconv"
	"strings"

	"go.etcd.io/etcd/raft"
	"go.etcd.io/etcd/raft/raftpb"
)

type member struct {
	id      uint64
	storage *raft.MemoryStorage
	node    *raft.RawNode
	commit  uint64
	applied []string
}

var members = map[uint64]*member{}
var order []uint64
var flight []raftpb.Message

func (m *member) start() {
	config := &raft.Config{
		ID: m.id, ElectionTick: 1000000, HeartbeatTick: 1, Storage: m.storage, PreVote: true,
		MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 256,
	}
	hard, _, _ := m.storage.InitialState()
	hard.Commit = 1 // ours learns it from its leader
	m.storage.SetHardState(hard)
	node, err := raft.NewRawNode(config)
	if err != nil {
		log.Fatal(err)
	}
	m.node, m.applied = node, nil
}

func (m *member) settle() {
	for m.node != nil && m.node.HasReady() {
		ready := m.node.Ready()
		m.storage.Append(ready.Entries)
		if !raft.IsEmptyHardState(ready.HardState) {
			m.storage.SetHardState(ready.HardState)
			m.commit = ready.HardState.Commit
		}
		for _, entry := range ready.CommittedEntries {
			if entry.Type == raftpb.EntryNormal && len(entry.Data) > 0 {
				m.applied = append(m.applied, string(entry.Data))
			}
		}
		flight = append(flight, ready.Messages...)
		m.node.Advance(ready)
	}
}

func deliver(among map[uint64]bool) {
	for len(flight) > 0 {
		message := flight[0]
		flight = flight[1:]
		to := members[message.To]
		if among[message.From] && among[message.To] && to.node != nil {
			to.node.Step(message)
			to.settle()
		}
	}
}

func numbers(words []string) []uint64 {
	var found []uint64
	for _, word := range words {
		number, _ := strconv.ParseUint(word, 10, 64)
		found = append(found, number)
	}
	return found
}

func set(words []string) map[uint64]bool {
	among := map[uint64]bool{}
	for _, id := range numbers(words) {
		among[id] = true
	}
	return among
}

func do(words []string) {
	ids := numbers(words[1:])
	switch words[0] {
	case "members":
		for _, id := range ids {
			m := &member{id: id, storage: raft.NewMemoryStorage()}
			m.storage.ApplySnapshot(raftpb.Snapshot{Metadata: raftpb.SnapshotMetadata{
				ConfState: raftpb.ConfState{Voters: ids}, Index: 0, Term: 0}})
			members[id] = m
			order = append(order, id)
		}
		sort.Slice(order, func(a, b int) bool { return order[a] < order[b] })
		for _, id := range order {
			m := members[id]
			*m.storage = *raft.NewMemoryStorage()
			m.storage.ApplySnapshot(raftpb.Snapshot{Metadata: raftpb.SnapshotMetadata{
				ConfState: raftpb.ConfState{Voters: ids}, Index: 1, Term: 0}})
			m.start()
		}
	case "elect":
		flight = nil // what is late would tell of a leader
		m := members[ids[0]]
		m.node.Campaign()
		m.settle()
		deliver(set(words[1:]))
	case "propose":
		m := members[ids[0]]
		m.node.Propose([]byte(words[2]))
		m.settle()
	case "run":
		for turn := 0; turn < 8; turn++ {
			for _, id := range order {
				if m := members[id]; m.node != nil && m.node.BasicStatus().RaftState == raft.StateLeader {
					m.node.Tick()
					m.settle()
				}
			}
			deliver(set(words[1:]))
		}
	case "crash":
		members[ids[0]].node = nil
	case "start":
		members[ids[0]].start()
		members[ids[0]].settle()
	}
}

func tell() string {
	var parts []string
	for _, id := range order {
		m := members[id]
		if m.node == nil {
			parts = append(parts, "down")
			continue
		}
		status := m.node.BasicStatus()
		last, _ := m.storage.LastIndex()
		term, _ := m.storage.Term(last)
		leads := 0
		if status.RaftState == raft.StateLeader {
			leads = 1
		}
		parts = append(parts, fmt.Sprintf("%d/%d/%d/%d/%d/%s", status.Term, leads, status.Commit-1,
			last-1, term, strings.Join(m.applied, ",")))
	}
	return strings.Join(parts, " ")
}

func main() {
	raft.SetLogger(&raft.DefaultLogger{Logger: log.New(ioutil.Discard, "", 0)})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if words[0] == "new" {
			members, order, flight = map[uint64]*member{}, nil, nil
			continue
		}
		do(words)
		fmt.Println(tell())
	}
}
