/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All failpoints.  X(name, side, reach, fails, what)
 *
 * side    who passes it: agent, library
 * reach   the workload that passes it, each of them a scenario (tests/README.md):
 *           mix     a client that does everything once, on one host
 *           start   the agent's start
 *           stop    the agent's clean stop
 *           caller  the mix to a segment of another host, at the client's agent
 *           called  the same, at the segment owner's agent
 *           loss    the same, one connection lost on the way, at either agent
 *           restart the mix, under mcshmd --supervise
 *           resume  an agent that dies under it, and the next one
 *           store   objects put, read and removed, under mcshmd --supervise
 *           rdma    two agents over RDMA rails (tests/rdma)
 *           meta    a name in the cluster's metadata, published and withdrawn
 *           disk    objects that go to disk and come back
 *           objects objects put, found, removed
 *           gpu     a client that does everything with GPU memory, over tests/fake-cuda
 *           gpuback the same, whose agent dies, and the next one
 * fails   1: MCS_FAIL(), the call site takes an errno
 */
#ifndef MCS_FAILPOINT_LIST_H
#define MCS_FAILPOINT_LIST_H

#define MCS_FAILPOINT_LIST(X)                                                                      \
    /* ---- library ---- */                                                                        \
    X(connect_socket, library, mix, 1, "connected, HELLO not sent")                                \
    X(session_mapped, library, mix, 1, "the session region is about to be mapped")                 \
    X(call_send, library, mix, 1, "a control request is about to be sent")                         \
    X(call_sent, library, mix, 1, "a control request is sent, its answer not received")            \
    X(call_received, library, mix, 1, "an answer is received, nothing noted of it")                \
    X(queue_mapped, library, mix, 1, "a queue's region is about to be mapped")                     \
    X(queue_tables, library, mix, 1, "a queue's private tables are about to be made")              \
    X(extent_mapped, library, mix, 1, "an extent is about to be mapped")                           \
    X(extent_unmap, library, mix, 0, "the agent took an extent back, it is still mapped")          \
    X(grant_mapped, library, mix, 1, "a granted extent is about to be mapped")                     \
    X(view_built, library, mix, 1, "a new view is about to be built")                              \
    X(submit_prepared, library, mix, 1, "slots taken and descriptors filled, nothing copied")      \
    X(caller_copy, library, mix, 0, "a copy in the caller's thread is announced and begins")       \
    X(caller_copied, library, mix, 0, "it is made, and still announced")                           \
    X(stage_copied, library, mix, 0, "private memory is copied to its shadow")                     \
    X(submit_written, library, mix, 0, "descriptors lie in the ring, its index is as before")      \
    X(submit_pushed, library, mix, 0, "descriptors are pushed, nothing is counted")                \
    X(doorbell, library, mix, 0, "the engine sleeps, its eventfd is about to be written")          \
    X(cancel_pushed, library, mix, 0, "a cancellation is pushed")                                  \
    X(wait_begin, library, mix, 0, "the waiter is announced, and looks once more")                 \
    X(wait_end, library, mix, 0, "the waiter is awake, and still announced")                       \
    X(task_reaped, library, mix, 0, "a task's end was seen")                                       \
    X(batch_reaped, library, mix, 0, "a batch's end was seen")                                     \
    X(batch_free, library, mix, 0, "half of a batch's slots are back")                             \
    X(notify_taken, library, mix, 0, "a notification is copied, its room not given back")          \
    X(queue_closing, library, mix, 0, "the agent closed a queue, its memory is still there")       \
    X(close_begin, library, mix, 0, "the connection is about to end")                              \
    /* ---- agent: sessions and control requests ---- */                                           \
    X(session_accept, agent, mix, 1, "a client's connection is about to be accepted")              \
    X(session_born, agent, mix, 1, "a session is about to be watched")                             \
    X(session_pidfd, agent, mix, 1, "its client's pidfd is about to be opened")                    \
    X(request_taken, agent, mix, 0, "a request is read, nothing done")                             \
    X(reply_send, agent, mix, 1, "an answer is about to be sent")                                  \
    X(hello_region, agent, mix, 1, "the session region is about to be made")                       \
    X(hello_guard, agent, mix, 1, "the session region is made, not guarded yet")                   \
    X(region_memfd, agent, mix, 1, "a memfd is made")                                              \
    X(region_mapped, agent, mix, 1, "it has its size and is mapped")                               \
    X(region_populated, agent, mix, 1, "its pages are there, it is not sealed yet")                \
    X(worker_run, agent, mix, 0, "the worker begins a job")                                        \
    X(worker_ran, agent, mix, 0, "the worker is through with it, nobody knows")                    \
    X(queue_guard, agent, mix, 1, "a queue's region is made, not guarded yet")                     \
    X(queue_init, agent, mix, 1, "its private tables are about to be made")                        \
    X(queue_watch, agent, mix, 1, "the session's doorbell is about to be watched")                 \
    X(queue_add, agent, mix, 1, "the engine takes the queue in")                                   \
    X(queue_opened, agent, mix, 0, "the engine has it, the client does not know")                  \
    X(queue_closed, agent, mix, 0, "the engine let go of it, its memory is still there")           \
    X(extent_plan, agent, mix, 1, "an extent is about to be planned")                              \
    X(extent_made, agent, mix, 1, "an extent's memory is made, not entered anywhere")              \
    X(extent_guard, agent, mix, 1, "it is about to be guarded")                                    \
    X(extent_enter, agent, mix, 1, "it is about to be entered into its session's table")           \
    X(extent_adopt, agent, mix, 1, "a client's memfd is checked, not mapped")                      \
    X(extent_freed, agent, mix, 0, "an extent is out of reach, not given back")                    \
    X(unregistered, agent, mix, 0, "a registration is out of reach, not given back")               \
    X(published, agent, mix, 0, "a segment has its name")                                          \
    X(withdrawn, agent, mix, 0, "a segment is out of reach, nobody was told")                      \
    X(buffer_add, agent, mix, 1, "a buffer is about to be added to its segment")                   \
    X(buffer_cut, agent, mix, 1, "a range is about to be cut out of a segment")                    \
    X(taken_away, agent, mix, 0, "memory is out of reach, what runs is awaited")                   \
    X(segment_open, agent, mix, 1, "a segment of this host is about to be opened")                 \
    X(segment_closed, agent, mix, 0, "a handle is out of reach, not freed")                        \
    X(map_open, agent, mix, 1, "a descriptor for a mapping is about to be opened")                 \
    X(map_granted, agent, mix, 0, "a mapping is noted, its descriptor not sent")                   \
    X(unmapped, agent, mix, 0, "a mapping is given back, its extent not")                          \
    X(query_made, agent, mix, 1, "the answer to a query is made")                                  \
    X(session_leaving, agent, mix, 0, "a session ends, its queues are still served")               \
    X(session_fading, agent, mix, 0, "its queues are out, its memory is still there")              \
    X(session_quiet, agent, mix, 0, "nothing reaches its memory any more")                         \
    X(session_gone, agent, mix, 0, "half of what it had is freed")                                 \
    X(reap_run, agent, mix, 0, "an extent's memory is about to be unmapped")                       \
    /* ---- agent: engines ---- */                                                                 \
    X(ring_taken, agent, mix, 0, "descriptors are taken, nothing done")                            \
    X(copy_begin, agent, mix, 0, "a burst is about to be copied")                                  \
    X(copy_done, agent, mix, 0, "it is copied, its slots are not filled")                          \
    X(slots_filled, agent, mix, 0, "slots are filled, batch lines not")                            \
    X(batch_told, agent, mix, 0, "a batch line is written")                                        \
    X(task_parked, agent, mix, 0, "a task is parked")                                              \
    X(slice_moved, agent, mix, 0, "a part of a parked task is copied")                             \
    X(notify_deliver, agent, mix, 0, "bytes are there, the notification is not")                   \
    X(notify_delivered, agent, mix, 0, "the notification is there, its task has not ended")        \
    X(client_wake, agent, mix, 0, "a sleeping client is about to be woken")                        \
    X(engine_sleep, agent, mix, 0, "need_wakeup is up, the engine looks once more")                \
    X(gate_open, agent, gpu, 0, "a gate that a task waits for has its value, or never will")       \
    X(gate_signal, agent, gpu, 0, "a task has ended, its gate is not set, its slot not filled")    \
    X(gpu_lane, agent, gpu, 1, "a queue's first task for a device is about to get its lane")       \
    X(gpu_copy, agent, gpu, 1, "a copy of GPU memory is about to be prepared")                     \
    X(gpu_job_post, agent, gpu, 0, "it is noted, its copier does not have it")                     \
    X(gpu_job_back, agent, gpu, 0, "it is made, and nobody knows")                                 \
    /* ---- agent: start and stop ---- */                                                          \
    X(start_pool, agent, start, 1, "the pool is about to be checked")                              \
    X(start_eal, agent, start, 1, "DPDK is about to be started")                                   \
    X(store_create, agent, start, 1, "the object store is about to be made")                       \
    X(store_table_kept, agent, start, 0, "its table is kept, nothing is in it")                    \
    X(store_recovered, agent, start, 0, "objects of an earlier life are there again")              \
    X(start_engine, agent, start, 1, "an engine is about to be made")                              \
    X(start_control, agent, start, 1, "the control thread's tools are about to be made")           \
    X(start_lock, agent, start, 1, "the lock is taken")                                            \
    X(start_worker, agent, start, 1, "the worker is about to start")                               \
    X(start_cluster, agent, start, 1, "what reaches other hosts is about to be made")              \
    X(store_begin, agent, start, 1, "its control thread's part is about to be made")               \
    X(start_socket, agent, start, 1, "the socket is bound, nobody may connect")                    \
    X(start_launch, agent, start, 1, "an engine is about to run")                                  \
    X(start_ready, agent, start, 0, "all is there, nobody was told")                               \
    X(stop_asked, agent, stop, 0, "the socket's file is about to go")                              \
    X(stop_quiet, agent, stop, 0, "sessions are gone, peers not")                                  \
    X(stop_peers, agent, stop, 0, "peers are gone, engines run")                                   \
    X(stop_engines, agent, stop, 0, "engines stand, the control thread's tools are there")         \
    /* ---- agent: RDMA rails ---- */                                                              \
    X(rdma_guess, agent, rdma, 1,                                                                  \
      "a key of the peer is about to be used: another one, as a rogue agent would")                \
    /* ---- agent: other hosts, who asks ---- */                                                   \
    X(dial, agent, caller, 1, "a peer's address is about to be connected to")                      \
    X(dialed, agent, caller, 1, "a peer is connected, nothing said")                               \
    X(hello_send, agent, caller, 1, "Hello is about to be sent")                                   \
    X(peer_up, agent, caller, 0, "a peer has said Hello")                                          \
    X(open_asked, agent, caller, 1, "a segment is about to be asked for")                          \
    X(open_answered, agent, caller, 1, "it was answered, nothing noted")                           \
    X(describe_answered, agent, caller, 1, "its description came, nothing noted")                  \
    X(ways_made, agent, caller, 1, "routes to a peer are about to be made")                        \
    X(rails_answered, agent, caller, 1, "tokens came")                                             \
    X(setup_sent, agent, caller, 1, "a data connection is about to be greeted")                    \
    X(setup_answered, agent, caller, 1, "it was answered, and goes to its engine")                 \
    X(rail_adopted, agent, caller, 1, "an engine takes it")                                        \
    X(remote_parked, agent, caller, 0, "a task for another host is in its lane")                   \
    X(slice_cut, agent, caller, 1, "a slice is about to be cut")                                   \
    X(slice_post, agent, caller, 0, "a slice is about to be posted")                               \
    X(slice_back, agent, caller, 0, "a slice is back, nothing noted")                              \
    X(remote_end, agent, caller, 0, "nothing of a task is out, its slot is not filled")            \
    X(remote_closed, agent, caller, 0, "a remote segment is let go")                               \
    X(uring_recv, agent, caller, 1, "the kernel refuses a receive")                                \
    X(uring_recv_short, agent, caller, 1, "the kernel receives one byte")                          \
    X(uring_send, agent, caller, 1, "the kernel refuses a send")                                   \
    X(uring_send_short, agent, caller, 1, "the kernel sends one byte")                             \
    X(uring_submit, agent, caller, 1, "the kernel takes no submissions this time")                 \
    /* ---- agent: other hosts, who is asked ---- */                                               \
    X(guest_accept, agent, called, 1, "a peer's connection is accepted")                           \
    X(guest_wire, agent, called, 1, "it turns out to be a control connection")                     \
    X(peer_welcome, agent, called, 1, "a peer has said who it is")                                 \
    X(export_open, agent, called, 1, "a segment is about to be opened for a peer")                 \
    X(export_told, agent, called, 0, "a peer is about to be told of a change")                     \
    X(export_describe, agent, called, 1, "it is about to be described")                            \
    X(export_rails, agent, called, 1, "tokens are about to be made")                               \
    X(export_closed, agent, called, 0, "a peer lets it go")                                        \
    X(guest_data, agent, called, 1, "a data connection has shown its token")                       \
    X(serve_adopt, agent, called, 1, "an engine takes it")                                         \
    X(serve_request, agent, called, 1, "a request has come, without its payload")                  \
    X(serve_half, agent, called, 0, "a part of a payload is in its place")                         \
    X(serve_applied, agent, called, 1, "a WRITE is applied, not answered")                         \
    X(serve_read, agent, called, 1, "a READ is about to be answered")                              \
    X(serve_notify, agent, called, 0, "a notification is about to be put")                         \
    /* ---- agent: other hosts, a connection lost ---- */                                          \
    X(slice_again, agent, loss, 0, "a slice goes back into its queue")                             \
    X(kill_asked, agent, loss, 0, "the peer is about to be asked for a connection's end")          \
    X(kill_served, agent, loss, 0, "a peer asked for a connection's end")                          \
    X(kill_confirmed, agent, loss, 0, "the peer has confirmed it")                                 \
    /* ---- agent: its ledger, and a later life that takes over ---- */                            \
    X(ledger_grow, agent, restart, 1, "the ledger is about to grow")                               \
    X(ledger_chunk, agent, restart, 0, "it has grown, the new part is of no kind yet")             \
    X(ledger_filled, agent, restart, 0, "a record is filled, and not valid yet")                   \
    X(ledger_added, agent, restart, 0, "it is valid, what it names was given to nobody")           \
    X(ledger_dropped, agent, restart, 0, "a record is not valid any more, what it named is there") \
    X(ledger_named, agent, restart, 0, "a name is written, and does not hold yet")                 \
    X(recovery_session, agent, resume, 1, "a session of an earlier life is about to be made")      \
    X(recovery_sessions, agent, resume, 0, "all are made, what they had is not")                   \
    X(recovery_begun, agent, resume, 0, "what they had is known, nobody may come back yet")        \
    X(restore_region, agent, resume, 1, "a client is back, its region not mapped")                 \
    X(restore_arrived, agent, resume, 0, "it is mapped, the client does not know")                 \
    X(restore_extent, agent, resume, 1, "an extent came back, not mapped")                         \
    X(restore_entered, agent, resume, 0, "it is in its session's table")                           \
    X(restore_queue, agent, resume, 1, "a queue came back, not mapped")                            \
    X(restore_queued, agent, resume, 0, "it is mapped, no engine has it")                          \
    X(resume_asked, agent, resume, 0, "all came back, others are awaited")                         \
    X(restore_left, agent, resume, 0, "what did not come back is given up")                        \
    X(resume_given, agent, resume, 0, "a queue is given to its engine")                            \
    X(resume_done, agent, resume, 0, "engines have all queues, the client does not know")          \
    /* ---- agent: objects ---- */                                                                 \
    X(store_extent_made, agent, store, 0, "an extent of objects is made, and not kept")            \
    X(store_extent_kept, agent, store, 0, "it is kept, the table does not know it")                \
    X(store_extent_add, agent, store, 1, "it is about to be entered into the table")               \
    X(store_extent_added, agent, store, 0, "objects may lie in it")                                \
    X(store_extent_removed, agent, store, 0, "it is out of the table, and still kept")             \
    X(store_extent_back, agent, store, 1, "one of an earlier life is about to be mapped")          \
    X(store_unguard, agent, store, 0, "no session of an earlier life is left")                     \
    X(object_map_open, agent, store, 1, "an extent is about to be given to a client")              \
    X(object_mapped, agent, store, 0, "it is counted, the client does not have it")                \
    X(object_unmapped, agent, store, 0, "a client has given it back, and is not told")             \
    X(object_space, agent, store, 0, "an object has its space, none of its bytes")                 \
    X(object_part, agent, store, 0, "a part of its bytes is there")                                \
    X(object_given, agent, store, 0, "a session has a creation, its client does not know")         \
    X(object_held, agent, store, 0, "a session holds an object, its client does not know")         \
    X(object_undone, agent, store, 0, "a hold is over, its space and pin are not")                 \
    X(store_list, agent, store, 1, "objects are about to be listed or removed by pattern")         \
    /* ---- library: a later agent ---- */                                                         \
    X(agent_lost, library, resume, 0, "the agent is gone")                                         \
    X(restore_send, library, resume, 1, "connected to a later one, nothing said")                  \
    X(restore_sent, library, resume, 0, "the session is claimed")                                  \
    X(restore_welcome, library, resume, 0, "it was granted, nothing handed back")                  \
    X(extents_back, library, resume, 0, "extents are handed back, queues are not")                 \
    X(queues_back, library, resume, 0, "queues are handed back, buffers are not")                  \
    X(resume_send, library, resume, 0, "all is handed back")                                       \
    X(resume_answered, library, resume, 0, "queues run again, tasks are judged as before")         \
    X(resume_told, library, resume, 0, "tasks are judged anew, sleepers sleep")                    \
    /* ---- agent: queue pairs with other agents ---- */                                           \
    X(pair_begun, agent, rdma, 1, "a queue pair is about to be made")                              \
    X(pair_made, agent, rdma, 1, "one that a peer asks for is made, it does not receive yet")      \
    X(pair_ready, agent, rdma, 0, "it receives, the peer does not know")                           \
    X(pair_connected, agent, rdma, 1, "both ends can send, no engine has it here")                 \
    /* ---- agent: GPU memory ---- */                                                              \
    X(gpu_open, agent, gpu, 0, "the GPU driver is about to be opened")                             \
    X(gpu_part, agent, gpu, 1, "the first part of memory to import has come")                      \
    X(gpu_plan, agent, gpu, 1, "GPU memory is about to be planned")                                \
    X(gpu_tie, agent, gpu, 1, "what the driver will have of an extent is about to be noted")       \
    X(gpu_made, agent, gpu, 0, "the driver has made or imported memory, or refused")               \
    X(gpu_extent, agent, gpu, 1, "the memory is about to become an extent")                        \
    X(gpu_release, agent, gpu, 0, "an extent's last user is gone, the driver still has it")        \
    X(gpu_gone, agent, gpu, 0, "the driver has it no more")                                        \
    X(gpu_back_begun, agent, gpuback, 1, "GPU memory comes back, nothing is noted of it")          \
    X(gpu_back, agent, gpuback, 0, "it is the session's again")                                    \
    /* ---- agent: its objects; passed by a load of their own ---- */                              \
    X(objects_grow, agent, objects, 1, "the table of objects is about to grow")                    \
    X(object_filled, agent, store, 0, "an object's record is filled, and not valid yet")           \
    X(object_valid, agent, store, 0, "it is valid, its writer does not know")                      \
    X(object_invalid, agent, store, 0, "a record is not valid any more, its space is not free")    \
    X(object_seal, agent, store, 0, "an object is about to be sealed")                             \
    X(object_sealed, agent, store, 0, "it is sealed, nobody was told")                             \
    X(object_left, agent, store, 0, "it has left, or gone to disk, its space is not free")         \
    X(object_extent_added, agent, store, 0, "an extent of objects is in the table")                \
    X(object_extent_gone, agent, store, 0, "it is out of the table, and still there")              \
    /* ---- agent: metadata ---- */                                                                \
    X(lease_granted, agent, meta, 1, "a lease is answered, and not noted")                         \
    X(lease_renewed, agent, meta, 1, "a lease's renewal is answered")                              \
    X(meta_register, agent, meta, 0, "a name is taken here, not in the cluster")                   \
    X(meta_registered, agent, meta, 0, "it is in the cluster, its owner does not know")            \
    X(meta_withdraw, agent, meta, 0, "it is about to be withdrawn from the cluster")               \
    /* ---- agent: the disk of the store ---- */                                                   \
    X(file_read, agent, disk, 1, "the kernel refuses to read from a file")                         \
    X(file_write, agent, disk, 1, "the kernel refuses to write to a file")                         \
    X(file_sync, agent, disk, 1, "the kernel refuses to make a file's data durable")               \
    X(file_short, agent, disk, 1, "the kernel reads or writes one block")                          \
    X(disk_bin, agent, disk, 1, "a new file for objects is about to be made")                      \
    X(disk_write, agent, disk, 0, "a group of objects is about to be written")                     \
    X(disk_written, agent, disk, 0, "it is written, and not durable yet")                          \
    X(disk_synced, agent, disk, 0, "it is durable, the store does not know")                       \
    X(disk_told, agent, disk, 0, "the store knows")                                                \
    X(disk_mark, agent, disk, 0, "marks of what was dropped are about to be written")              \
    X(disk_marked, agent, disk, 0, "they are written, and not durable yet")                        \
    X(disk_evict, agent, disk, 0, "the oldest file is about to go")                                \
    X(disk_evicted, agent, disk, 0, "it is gone, the store does not know")                         \
    X(disk_fetch, agent, disk, 0, "an object is about to be read")                                 \
    X(disk_fetched, agent, disk, 0, "it is in memory, the store does not know")                    \
    X(disk_scanned, agent, disk, 0, "the folder is scanned, the store knows all of it")

#endif
