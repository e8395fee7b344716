-- The methods of the store. A call executes one of them, which no other command interrupts.
--
-- KEYS[1] is the first part of all keys that it uses, which are in one hash slot: `PREFIX:{t:TENANT}`, or
-- `PREFIX:{s:SHARD}` for the methods of the list of tenants. ARGV[1] is the method, ARGV[2] is the time of the
-- answer that made the caller put the tenant into that list, or '0', and ARGV[3] is the time of the caller, or empty for that of the server. The rest are the
-- arguments of the method. The first value of a result is a code.
--
-- Times are microseconds since 1970. They, and the versions, are exact in the numbers of Lua up to 2^53.
-- T and R are the names of a conversation and a run, escaped so that they have no colon.
--
-- Keys of a tenant:
--   :n          the last version            :i      the time at which the tenant was listed
--   :r:T:R      a run                       :q:T:R  the interrupts that it raised
--   :g:LOG      a log of turns              :gt:LOG its turns          :gc:LOG the logs that begin with its turns
--   :p:ID       turns that are staged for a write
--   :t:T        a conversation              :s:T    its slots          :tz     the names of all conversations by version
--   :f:EFFECT   an effect                   :fr:T:R those of a run     :fu :fn those without a run
--   :y          runs that were deleted with their conversations, by time
--   :u          used keys                   :uz     by time            :un     the number of used keys
--   :d:ID       a decision                  :dz     all                :dh:T :dr:T:R those of ..
--   :dt:TOOL:SPAN  the decisions about a tool that apply always; with :T, or :T:R, those of other spans
--   :v:T:SPACE:DIGEST  a cached value        :vz     all by time        :vt:T  those of a conversation  :vb  their bytes
--   :j:T:NAME   a log of events              :js:T:NAME its events      :jt:T  those of a conversation  :jz  all by expiry
--   :m:OWNER    memories                    :mz:OWNER by time          :mo     their owners
--   :lb :lo :ld  budgets, whose methods are in `limits.lua`
-- Indexes of runs, which are repaired from the runs:
--   :l  running ones by the end of the lease    :z  quarantined ones   :w  waiting ones   :e  ended ones
--   :x  all    :x:T  all of a conversation      :o:T  those that have not ended   :c:T:ID  running ones by client id
--   :b:T:ID  all by client id
--   :k :k:T  those that count towards the limits of waiting runs       :a:T:INTERRUPT  those that raised it
local call = redis.call
local base = KEYS[1]
local methods = {}
local cursor = 3
-- The key of the staged turns of this call.
local staged

-- The next `n` arguments.
local function take(n)
  local from = cursor + 1
  cursor = cursor + n
  return unpack(ARGV, from, cursor)
end

-- A list, after its length.
local function take_list()
  local list = {}
  for n = 1, tonumber((take(1))) do
    list[n] = take(1)
  end
  return list
end

-- An optional text: '-', or the text after '+'.
local function optional(text)
  if text == '-' then
    return false
  end
  return string.sub(text, 2)
end

-- Names without colons for keys; the same as `escape` of the caller.
local function escape(name)
  return (string.gsub(name, '[^%w_.@-]', function(byte)
    return string.format('%%%02X', string.byte(byte))
  end))
end

local function text(number)
  return string.format('%.0f', number)
end

local function server_time()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local now = tonumber(ARGV[3]) or server_time()

-- A version that is greater than all before it in this tenant. It is at least the seconds since 1970 times 2^20, so
-- that it does not restart if the counter is lost. The numbers of two tenants are far from each other.
local function next_version()
  local n = tonumber(call('GET', base .. ':n') or 0) + 1
  local least = tonumber(call('TIME')[1]) * 1048576 + tonumber(string.sub(redis.sha1hex(base), 1, 5), 16)
  if n < least then
    n = least
  end
  call('SET', base .. ':n', text(n))
  return n
end

-- The seconds after which a tenant is put into the list of tenants again, in case that the list was lost.
local LISTED = 600

-- The seconds after the answer of `unlisted` in which a call may follow. Fewer than those for which the time of the
-- list is not raised.
local FOLLOWS = 30

-- The answer that makes the caller put the tenant into the list of tenants, and call again. The list has a time
-- that is not later than the end of any lease of the tenant.
local function unlisted(deadline)
  local seconds = tonumber(call('TIME')[1])
  if seconds < tonumber(ARGV[2]) + FOLLOWS then
    call('SET', base .. ':i', text(seconds))
    return nil
  end
  local first = tonumber(call('ZRANGE', base .. ':l', 0, 0, 'WITHSCORES')[2] or math.huge)
  local is_listed = seconds < tonumber(call('GET', base .. ':i') or 0) + LISTED
  if is_listed and (not deadline or first <= deadline) then
    return nil
  end
  return {'unlisted', text(math.min(first, deadline or first)), text(seconds)}
end

-- The most entries of a kind that a call removes, which bounds its time.
local BATCH = 25

-- Begins a method that frees memory. A server whose memory is full refuses only the first write of a script, if that
-- write may need memory; this one does not.
local function frees_memory()
  call('UNLINK', base .. ':none')
end

-- Calls a command with many arguments, which are `per` for each item, in parts.
local function in_parts(command, key, items, per)
  local most = 1000 * per
  for from = 1, #items, most do
    call(command, key, unpack(items, from, math.min(from + most - 1, #items)))
  end
end
