-- Effects, used keys, decisions and memories.

-- Starts an effect. `known` are the arguments of an earlier call that the caller found to be equal.
function methods.effect_begin()
  local effect, claimed, T, R, fence, tool, arguments, known, repeatable, attempt = take(10)
  if claimed == '1' and fence_code(run_open(T, R), tonumber(fence)) then
    return {'stale'}
  end
  local key = base .. ':f:' .. effect
  local f = call('HMGET', key, 'tool', 'arguments', 'outcome', 'repeatable', 'attempt')
  if not f[1] then
    local answer = claimed ~= '1' and unlisted(nil)
    if answer then
      return answer
    end
    call('HSET', key, 'tool', tool, 'arguments', arguments, 'repeatable', repeatable, 'attempt', attempt)
    if claimed == '1' then
      call('HSET', key, 'run', T .. ':' .. R)
      call('SADD', base .. ':fr:' .. T .. ':' .. R, effect)
    else
      call('SADD', base .. ':fu', effect)
    end
    return {'new'}
  end
  if f[5] == attempt then
    return {'new'}
  end
  if f[1] ~= tool or f[2] ~= arguments and f[2] ~= known then
    return {'differs', f[1], f[2]}
  end
  if f[4] ~= repeatable then
    call('HSET', key, 'repeatable', repeatable)
  end
  return {'known', f[3]}
end

-- Records an outcome. `kind` is 'failed', 'done' or 'other'.
function methods.effect_finish()
  local effect, outcome, kind = take(3)
  local key = base .. ':f:' .. effect
  local f = call('HMGET', key, 'tool', 'outcome', 'repeatable', 'kind')
  if not f[1] then
    return {'not_found'}
  end
  if not f[2] or f[3] == '1' and f[4] == 'failed' and kind == 'done' then
    call('HSET', key, 'outcome', outcome, 'kind', kind)
  end
  return {'ok'}
end

function methods.effect_known()
  local f = call('HMGET', base .. ':f:' .. take(1), 'tool', 'outcome')
  if not f[1] then
    return {'new'}
  end
  return {'known', f[2]}
end

-- Deletes an effect without an outcome.
function methods.effect_retract()
  local effect = take(1)
  local key = base .. ':f:' .. effect
  local f = call('HMGET', key, 'outcome', 'run')
  if not f[1] then
    call('UNLINK', key)
    if f[2] then
      call('SREM', base .. ':fr:' .. f[2], effect)
    end
    call('SREM', base .. ':fu', effect)
    call('ZREM', base .. ':fn', effect)
  end
  return {'ok'}
end

-- Returns whether a key is used for the first time.
function methods.once_use()
  local name, keep, attempt = take(3)
  local used = call('HGET', base .. ':u', name)
  if used then
    return {'ok', string.sub(used, 1, #attempt) == attempt and 1 or 0}
  end
  local answer = unlisted(nil)
  if answer then
    return answer
  end
  local n = call('INCR', base .. ':un')
  call('HSET', base .. ':u', name, attempt .. text(n))
  call('ZADD', base .. ':uz', text(now + tonumber(keep)), name)
  return {'ok', 1}
end

function methods.decision_remember()
  local id, tool, span, T, R, json = take(6)
  decision_remove(id)
  local n = text(next_version())
  call('HSET', base .. ':d:' .. id, 'tool', tool, 'span', span, 'thread', T, 'run', R, 'json', json)
  call('ZADD', base .. ':dz', n, id)
  call('ZADD', decision_index(tool, span, T, R), n, id)
  if span == 'run' or span == 'thread' then
    call('SADD', base .. ':dh:' .. T, id)
  end
  if span == 'run' then
    call('SADD', base .. ':dr:' .. T .. ':' .. R, id)
  end
  return {'ok'}
end

function methods.decision_recall()
  local tool, R, T, session = take(4)
  session = optional(session)
  local indexes = {decision_index(tool, 'always'), decision_index(tool, 'thread', T),
    decision_index(tool, 'run', T, R)}
  if session then
    indexes[4] = decision_index(tool, 'session', session)
  end
  local all = {}
  for _, index in ipairs(indexes) do
    local entries = call('ZRANGE', index, 0, -1, 'WITHSCORES')
    for at = 1, #entries, 2 do
      all[#all + 1] = {entries[at], tonumber(entries[at + 1])}
    end
  end
  table.sort(all, function(a, b)
    return a[2] > b[2]
  end)
  local found = {'ok'}
  for _, entry in ipairs(all) do
    local json = call('HGET', base .. ':d:' .. entry[1], 'json')
    if json then
      found[#found + 1] = {entry[1], json}
    end
  end
  return found
end

function methods.decision_list()
  local found = {'ok'}
  for _, id in ipairs(call('ZREVRANGE', base .. ':dz', 0, -1)) do
    local json = call('HGET', base .. ':d:' .. id, 'json')
    if json then
      found[#found + 1] = {id, json}
    end
  end
  return found
end

function methods.decision_revoke()
  return {'ok', decision_remove((take(1))) and 1 or 0}
end

-- Stores a memory, and removes the oldest ones of its owner beyond `max`. A value is the exact time and the text.
function methods.memory_put()
  local owner, id, at, value, max = take(5)
  local all, order = base .. ':m:' .. owner, base .. ':mz:' .. owner
  call('SADD', base .. ':mo', owner)
  call('HSET', all, id, value)
  call('ZADD', order, at, id)
  while call('ZCARD', order) > tonumber(max) do
    call('HDEL', all, call('ZPOPMIN', order)[1])
  end
  return {'ok'}
end

function methods.memory_all()
  return {'ok', call('HGETALL', base .. ':m:' .. take(1))}
end

function methods.memory_forget()
  local owner, id = take(2)
  id = optional(id)
  local all, order = base .. ':m:' .. owner, base .. ':mz:' .. owner
  local count
  if id then
    call('ZREM', order, id)
    count = call('HDEL', all, id)
  else
    count = call('HLEN', all)
    call('UNLINK', all, order)
  end
  if call('EXISTS', all) == 0 then
    call('SREM', base .. ':mo', owner)
  end
  return {'ok', count}
end
